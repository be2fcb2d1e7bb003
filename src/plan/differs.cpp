#include <fmt/format.h>

#include <unordered_map>

#include "ebb/ops.h"
#include "ops/leaf/leaf.h"
#include "ops/transfer/transfer.h"
#include "passes/layout.h"
#include "plan/check.h"

namespace ebb {
namespace {

// Value numbering: two tensors have the same number if and only if they are computed by the same
// calls from the same leaves and inputs.
using Number = std::size_t;

// An operand of a call: the number of the tensor that owns the buffer, and the layout it is read
// in.
struct Read {
  Number number;
  Layout layout;
  TensorType type;
  bool operator==(const Read& other) const {
    return number == other.number && layout.strides == other.layout.strides &&
           layout.offset == other.layout.offset && type == other.type;
  }
};

class NodeNumbers {
 public:
  // The number of output 0 of the call; output i has this number plus i.
  Number of_call(const Op& op, const Attributes& attributes, std::vector<Read> inputs,
                 std::size_t outputs) {
    std::size_t hash = std::hash<std::string>()(attributes.text()) ^
                       (std::hash<const void*>()(&op) * 31) ^ inputs.size();
    for (const Read& read : inputs) hash = hash * 1000003 + read.number;
    for (auto [it, end] = calls_.equal_range(hash); it != end; ++it)
      if (const Call_& call = it->second; call.op == &op && call.attributes == attributes &&
                                          call.inputs == inputs && call.outputs == outputs)
        return call.number;
    const Number first = next_;
    next_ += outputs;
    calls_.emplace(hash, Call_{&op, attributes, std::move(inputs), outputs, first});
    return first;
  }
  Number of_leaf(std::uint64_t node) { return leaf(leaves_, node); }
  Number of_input(std::size_t input) { return leaf(inputs_, input); }

 private:
  struct Call_ {
    const Op* op;
    Attributes attributes;
    std::vector<Read> inputs;
    std::size_t outputs;
    Number number;
  };
  Number leaf(std::unordered_map<std::uint64_t, Number>& known, std::uint64_t key) {
    const auto [found, is_new] = known.try_emplace(key, next_);
    next_ += is_new;
    return found->second;
  }

  std::unordered_multimap<std::size_t, Call_> calls_;
  std::unordered_map<std::uint64_t, Number> leaves_, inputs_;
  Number next_ = 0;
};

// Numbers of a graph's tensors.
class OfGraph {
 public:
  OfGraph(const Graph& graph, NodeNumbers& numbers) : numbers_(numbers) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i)
      roots_[graph.inputs[i]] = numbers.of_input(i);
    for (const auto& node : topological_order(graph)) add(node);
  }

  Read read(const Tensor& tensor) const {
    return {roots_.at(layouts_.root(tensor)), layouts_[tensor], tensor.type()};
  }

  Number copied(const Tensor& tensor) const {
    const auto node = contiguous(tensor).node();
    return numbers_.of_call(node->op(), node->attributes(), {read(tensor)}, 1);
  }

 private:
  void add(const std::shared_ptr<Node>& node) {
    for (std::size_t o = 0; o < node->outputs().size(); ++o)
      layouts_.add({node, static_cast<int>(o)});
    if (is_leaf(node->op())) {
      roots_.try_emplace({node, 0}, numbers_.of_leaf(node->id()));
    } else if (!node->op().is_view()) {
      std::vector<Read> inputs;
      for (const Tensor& input : node->inputs()) inputs.push_back(read(input));
      const Number first = numbers_.of_call(node->op(), node->attributes(), std::move(inputs),
                                            node->outputs().size());
      for (std::size_t o = 0; o < node->outputs().size(); ++o)
        roots_[{node, static_cast<int>(o)}] = first + o;
    }
  }

  NodeNumbers& numbers_;
  LayoutMap layouts_;
  std::unordered_map<Tensor, Number> roots_;
};

// Numbers of a plan's values, and of the values that variables hold when the step ends.
class OfPlan {
 public:
  OfPlan(const Plan& plan, NodeNumbers& numbers) : of_(plan.values.size()) {
    for (std::size_t i = 0; i < plan.inputs.size(); ++i)
      of_[plan.inputs[i].value.index()] = numbers.of_input(i);
    for (const Leaf& leaf : plan.leaves)
      of_[leaf.value.index()] = written_[leaf.node] = numbers.of_leaf(leaf.node);
    for (const Instruction& instruction : plan.instructions) {
      std::vector<Read> inputs;
      for (const Operand& o : instruction.inputs)
        inputs.push_back({of_[o.value.index()], o.layout, o.type});
      // A copy in another tier is the same value.
      Number number = is_transfer(*instruction.op)
                          ? inputs[0].number
                          : numbers.of_call(*instruction.op, instruction.attributes,
                                            std::move(inputs), instruction.outputs.size());
      for (const Operand& o : instruction.outputs) {
        of_[o.value.index()] = number;
        if (const LeafId leaf = plan.buffers[o.buffer].place.leaf)
          written_[plan.leaves[leaf].node] = number;
        ++number;
      }
    }
  }

  Number operator[](ValueId value) const { return of_[value.index()]; }
  // For all leaves of the plan, by Node::id: the number of the value that the leaf holds at the
  // end.
  std::unordered_map<std::uint64_t, Number> at_end() const { return written_; }

 private:
  std::vector<Number> of_;
  std::unordered_map<std::uint64_t, Number> written_;
};

}  // namespace

std::optional<std::string> differs(const Plan& plan, const Graph& graph) {
  NodeNumbers numbers;
  const OfGraph expected(graph, numbers);
  const OfPlan found(plan, numbers);
  for (std::size_t o = 0; o < graph.outputs.size(); ++o)
    if (found[plan.outputs.at(o).value] != expected.read(graph.outputs[o]).number)
      return fmt::format("output {}", o);
  std::unordered_map<std::uint64_t, Number> at_end = found.at_end();
  for (const Update& update : graph.updates) {
    const auto held = at_end.find(update.target.node()->id());
    const bool unchanged = update.value == static_cast<const Tensor&>(update.target);
    const bool same = held == at_end.end() ? unchanged
                                           : held->second == expected.read(update.value).number ||
                                                 held->second == expected.copied(update.value);
    if (!same) return fmt::format("the new value of \"{}\"", update.target.path());
    if (held != at_end.end()) at_end.erase(held);
  }
  for (const auto& [node, number] : at_end)
    if (number != numbers.of_leaf(node)) return "a variable that the graph leaves alone";
  return {};
}

}  // namespace ebb
