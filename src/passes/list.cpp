// The list of passes. A new pass is one row.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ebb/activation_bits.h"
#include "ebb/error.h"
#include "ebb/passes.h"
#include "passes/passes.h"

namespace ebb {
namespace {

constexpr auto on_cuda = Device::Kind::cuda;

// The join_* passes run before `fuse_pointwise`, which would hide elementwise ops from their
// patterns.
const Pass table[] = {
    {.name = "share_codes",
     .summary = "fp8 products share the 8-bit codes of a common factor",
     .run = share_codes},
    {.name = "join_loss",
     .summary = "a fused loss and its gradient become one op",
     .run = join_loss},
    {.name = "pack_gradients",
     .summary = "attention writes the gradients of q, k and v side by side",
     .run = pack_gradients},
    {.name = "join_epilogues",
     .summary =
         "a norm's gradient or, on a GPU, a product also does the addition or slope that follows",
     .bits = PassBits::same_on_cpu,
     .run = join_epilogues},
    {.name = "join_sums",
     .summary = "a norm's gradient also computes a bias's gradient, a sum over the same rows",
     .bits = PassBits::same_on_cpu,
     .only_on = on_cuda,
     .run = join_sums},
    {.name = "join_relu",
     .summary = "a batch norm also computes the relu that follows, and its gradient relu's",
     .run = join_relu},
    {.name = "fuse_pointwise",
     .summary = "elementwise ops become part of the op that reads them",
     .run = fuse_pointwise},
    {.name = "insert_copies",
     .summary = "inserts a copy before every kernel that cannot read the layout of its input",
     .phase = PassPhase::layout,
     .required = true,
     .run = insert_copies},
    {.name = "group_small",
     .summary = "many small updates or sums run in one kernel",
     .phase = PassPhase::group,
     .only_on = on_cuda,
     .raises_peak = true,
     .run = [](const Graph& graph) { return group_small(graph, on_cuda); }},
};

// Passes that change results, in no list unless they are asked for.
const Pass on_request[] = {
    {.name = activation_codes_pass,
     .summary = "activations are 8-bit codes from forward to backward (--activation-bits)",
     .run = code_activations},
};

const Pass* on_request_named(std::string_view name) {
  const auto found = std::ranges::find(on_request, name, &Pass::name);
  return found == std::end(on_request) ? nullptr : &*found;
}

const Pass& pass_named(std::string_view name) {
  if (const Pass* pass = on_request_named(name)) return *pass;
  const auto found = std::ranges::find(table, name, &Pass::name);
  if (found == std::end(table))
    throw ValueError(fmt::format("there is no pass \"{}\"; there are {}", name,
                                 fmt::join(all_pass_names(), ", ")));
  return *found;
}

std::vector<const Pass*> checked(const PassList& list) {
  std::vector<const Pass*> passes;
  for (const std::string& name : list) {
    const Pass& pass = pass_named(name);
    if (std::ranges::find(passes, &pass) != passes.end())
      throw ValueError(fmt::format("the pass \"{}\" is in the list twice", name));
    if (!passes.empty() && pass.phase < passes.back()->phase)
      throw ValueError(
          fmt::format("the pass \"{}\" must run before \"{}\"", name, passes.back()->name));
    passes.push_back(&pass);
  }
  for (const Pass& pass : table)
    if (pass.required && std::ranges::find(passes, &pass) == passes.end())
      throw ValueError(fmt::format(
          "the pass \"{}\" is not in the list, but no program can be made without it", pass.name));
  return passes;
}

}  // namespace

std::span<const Pass> all_passes() { return table; }

PassList all_pass_names() {
  PassList names;
  for (const Pass& pass : table) names.emplace_back(pass.name);
  return names;
}

PassList required_passes() {
  PassList names;
  for (const Pass& pass : table)
    if (pass.required) names.emplace_back(pass.name);
  return names;
}

PassList passes_without(PassList list, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (on_request_named(name))
      throw ValueError(fmt::format(
          "the pass \"{}\" runs only if it is asked for, so that it cannot be left out", name));
    if (pass_named(name).required)
      throw ValueError(fmt::format(
          "the pass \"{}\" cannot be left out: no program can be made without it", name));
    std::erase(list, name);
  }
  return list;
}

// Among the products that share_codes has made, and before passes that know the ops of backward.
PassList with_activation_codes(PassList list) {
  if (std::ranges::find(list, activation_codes_pass) != list.end()) return list;
  const auto products = std::ranges::find(list, "share_codes");
  list.insert(products == list.end() ? list.begin() : products + 1,
              std::string(activation_codes_pass));
  return list;
}

CodedActivations coded_activations(const Graph& graph, const PassList& list) {
  Graph before = graph;
  for (const Pass* pass : checked(list)) {
    if (pass->name == activation_codes_pass) return told_by_code_activations(before);
    before = pass->run(before);
  }
  return {};
}

Graph run_passes(const Graph& graph, const PassList& list, std::vector<PassEffect>* effects) {
  const std::vector<const Pass*> passes = checked(list);
  Graph result = graph;
  for (const Pass* pass : passes) {
    const std::size_t before = effects ? topological_order(result).size() : 0;
    result = pass->run(result);
    if (effects) effects->push_back({pass, true, before, topological_order(result).size()});
  }
  if (effects)
    for (const Pass& pass : table)
      if (std::ranges::find(passes, &pass) == passes.end()) effects->push_back({.pass = &pass});
  return result;
}

}  // namespace ebb
