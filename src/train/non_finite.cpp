#include "ebb/train/non_finite.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ebb/half.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/storage.h"

namespace ebb {
namespace {

using Key = std::pair<const Node*, int>;  // a node and one of its outputs

// One number for a tensor: 0, or NaN if any of its elements is not finite.
Tensor finite_mark(const Tensor& t) { return reshape(cast(sum(t - t), f32), {1}); }

NonFinite::Kind kind_of(const Node& node, const Graph& graph) {
  for (const Tensor& input : graph.inputs)
    if (input.node().get() == &node) return NonFinite::Kind::batch;
  return node.inputs().empty() && node.storage() ? NonFinite::Kind::parameter
                                                 : NonFinite::Kind::result;
}

// Calls `visit` with the bytes of a floating variable that has a value.
template <class Visit>
void with_bytes(const Variable& variable, const Visit& visit) {
  if (!is_floating(variable.dtype()) || !variable.has_value()) return;
  const Storage& storage = *variable.node()->storage();
  const bool here = storage.on_host();  // then no copy is made
  std::vector<std::byte> copy(here ? 0 : static_cast<std::size_t>(variable.type().bytes().count));
  if (!here) storage.read(copy);
  visit(here ? storage.data() : copy.data());
}

bool holds_non_finite(const Variable& variable) {
  bool found = false;
  with_bytes(variable, [&](const std::byte* bytes) {
    // The exponent's bits are all set in infinities and NaN.
    const auto any = [&]<class Word>(Word exponent) {
      const Word* words = reinterpret_cast<const Word*>(bytes);
      return std::any_of(words, words + variable.shape().elements(),
                         [&](Word word) { return (word & exponent) == exponent; });
    };
    switch (variable.dtype()) {
      case f64:
        return void(found = any(std::uint64_t{0x7ff0'0000'0000'0000}));
      case f32:
        return void(found = any(std::uint32_t{0x7f80'0000}));
      case bf16:
        return void(found = any(std::uint16_t{0x7f80}));
      default:
        return void(found = any(std::uint16_t{0x7c00}));  // float16
    }
  });
  return found;
}

double largest_in(const Variable& variable) {
  double largest = 0.0;
  with_bytes(variable, [&](const std::byte* bytes) {
    const auto find = [&]<class T>(const T* values) {
      for (std::int64_t i = 0; i < variable.shape().elements(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(values[i])));
    };
    switch (variable.dtype()) {
      case f64:
        return find(reinterpret_cast<const double*>(bytes));
      case f32:
        return find(reinterpret_cast<const float*>(bytes));
      case bf16:
        return find(reinterpret_cast<const BFloat16*>(bytes));
      default:
        return find(reinterpret_cast<const Half*>(bytes));
    }
  });
  return largest;
}

std::string result_of(std::string_view op, const std::string& module) {
  return fmt::format("the result of {}{}", op,
                     module.empty() ? "" : fmt::format(" at \"{}\"", module));
}

// A value that is checked.
struct Check {
  Key key;
  Tensor mark;
  bool finite = true;
};

struct CheckingRun {
  const Graph& graph;
  std::span<const Tensor> inputs;
  std::uint64_t step;
  const CompileOptions& options;
};

// A value that is checked must be in memory as a whole, even if passes would never store it. If no
// plan for all checks keeps the budget, each half is run by itself.
void run_checks(const CheckingRun& run, std::span<Check> checks) {
  std::vector<Tensor> marks;
  for (const Check& check : checks) marks.push_back(check.mark);
  const Graph graph{run.graph.inputs, {concat(marks, 0)}, {}};
  PlanResult planned = try_plan_program(graph, run.options);
  if (!planned.plan) {
    const std::size_t half = checks.size() / 2;
    if (half == 0)
      throw MemoryError(
          fmt::format("no plan that checks {} keeps the budget",
                      result_of(checks[0].key.first->op().name(), checks[0].key.first->path())));
    run_checks(run, checks.first(half)), run_checks(run, checks.subspan(half));
    return;
  }
  Program program(graph, std::move(*planned.plan), run.options);
  program.set_step(run.step);
  program.run(run.inputs);
  const std::vector<float> found = program.output(0).to_vector<float>();
  for (std::size_t i = 0; i < found.size(); ++i) checks[i].finite = !std::isnan(found[i]);
}

}  // namespace

std::string to_string(const NonFinite& found) {
  switch (found.kind) {
    case NonFinite::Kind::batch:
      return fmt::format("{}, which the step was given", found.module);
    case NonFinite::Kind::parameter:
      return fmt::format("\"{}\", which an earlier step left so", found.module);
    case NonFinite::Kind::result:
      break;
  }
  return result_of(found.op, found.module);
}

std::optional<NonFinite> find_non_finite(const Graph& graph, const Tensor& target,
                                         std::span<const Tensor> inputs, std::uint64_t step,
                                         const CompileOptions& options) {
  std::vector<Check> checks;
  for (const auto& node : topological_order({{}, {target}, {}}))
    for (int i = 0; i < static_cast<int>(node->outputs().size()); ++i)
      if (const Tensor value(node, i); is_floating(value.dtype()) && value.shape().elements() > 0)
        checks.push_back({{node.get(), i}, finite_mark(value)});
  CompileOptions of_checks = options;
  of_checks.planner = {};  // a plan from a file is of the step
  of_checks.plan.effort = Effort::quick;
  run_checks({graph, inputs, step, of_checks}, checks);
  std::map<Key, bool> known;
  for (const Check& check : checks) known[check.key] = check.finite;
  const auto finite = [&](const Tensor& t) {
    const auto found = known.find({t.node().get(), t.output()});
    return found == known.end() || found->second;
  };
  // Walks back from the target through values that are not finite. Other non-finite values, such as
  // the -inf of a mask, are harmless.
  Tensor at = target;
  if (finite(at)) return {};
  for (bool origin = false; !origin;) {
    origin = true;
    for (const Tensor& input : at.node()->inputs())
      if (!finite(input)) {
        at = input, origin = false;
        break;
      }
  }
  const Node& node = *at.node();
  const NonFinite::Kind kind = kind_of(node, graph);
  return NonFinite{kind, kind == NonFinite::Kind::batch ? "the batch" : node.path(),
                   std::string(node.op().name())};
}

std::optional<std::string> non_finite_variable(const nn::ModuleBase& model) {
  return non_finite_variable(model.parameters(), model.buffers());
}

std::optional<std::string> non_finite_variable(const std::vector<nn::NamedVariable>& parameters,
                                               const std::vector<nn::NamedVariable>& buffers) {
  for (const std::vector<nn::NamedVariable>* all : {&parameters, &buffers})
    for (const nn::NamedVariable& v : *all)
      if (holds_non_finite(v.variable)) return v.path;
  return {};
}

LargestWeight largest_weight(const nn::ModuleBase& model) {
  LargestWeight largest;
  for (const nn::NamedVariable& p : model.parameters())
    if (const double value = largest_in(p.variable); value > largest.value)
      largest = {p.path, value};
  return largest;
}

}  // namespace ebb
