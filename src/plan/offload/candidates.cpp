#include "plan/offload/candidates.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/leaf/leaf.h"
#include "ops/transfer/transfer.h"

namespace ebb::planning {
namespace {

// A result must be unused for at least this part of the step's time. Copies wait for those before
// them in their lane, so one that is needed back soon would hold up all fetches after it.
constexpr double shortest_gap = 0.02;

// The numbers below `count` in an order whose every beginning is spread evenly over them: that of
// their reversed bits.
std::vector<std::size_t> spread(std::size_t count) {
  std::size_t bits = 0;
  while (std::size_t{1} << bits < count) ++bits;
  std::vector<std::size_t> result;
  for (std::size_t n = 0; n < std::size_t{1} << bits; ++n) {
    std::size_t reversed = 0;
    for (std::size_t b = 0; b < bits; ++b) reversed |= (n >> b & 1) << (bits - 1 - b);
    if (reversed < count) result.push_back(reversed);
  }
  return result;
}

class Finding {
 public:
  explicit Finding(const Planner& planner)
      : plan_(planner.base().plan),
        nodes_(planner.base().nodes),
        graph_(planner.graph()),
        options_(planner.options()) {
    graph_instructions_ = planner.base().graph_instructions;
    double now = 0.0;
    for (const Instruction& instruction : plan_.instructions) {
      starts_.push_back(now);
      now += instruction.predicted_ms;
    }
    starts_.push_back(now);
  }

  std::vector<Candidate> run() {
    add_variables();
    if (options_.offload.activations) add_activations();
    return std::move(found_);
  }

 private:
  // A variable can be elsewhere if one instruction makes its new value, which is copied there after
  // that; not if its new value is another leaf, a view, that of two variables, or copied into it at
  // the end of the step, because others read the old one until then.
  void add_variables() {
    std::unordered_map<std::uint64_t, InstructionId> written;  // by Node::id
    std::unordered_set<std::uint64_t> refused;
    for (const InstructionId i : plan_.instructions.ids())
      for (const Operand& output : plan_.instructions[i].outputs)
        if (const LeafId leaf = plan_.buffers[output.buffer].place.leaf) {
          written[plan_.leaves[leaf].node] = i;
          if (i.number() >= graph_instructions_) refused.insert(plan_.leaves[leaf].node);
        }
    std::unordered_map<Tensor, std::uint64_t> target_of;
    for (const Update& update : graph_.updates) {
      const std::uint64_t node = update.target.node()->id();
      const Op& op = update.value.node()->op();
      const auto [other, is_new] = target_of.emplace(update.value, node);
      if (is_leaf(op) || op.is_view()) refused.insert(node);
      if (is_leaf(op)) refused.insert(update.value.node()->id());
      if (!is_new) refused.insert(node), refused.insert(other->second);
    }
    std::vector<std::pair<InstructionId, Candidate>> by_update;
    for (const auto& node : topological_order(graph_)) {
      if (&node->op() != &variable_op() || refused.contains(node->id()) ||
          home_of(*node, options_.offload))
        continue;
      const bool weights = node->category() == Category::weights;
      const Bytes bytes = node->outputs()[0].bytes();
      if (bytes < options_.offload.smallest ||
          !(weights ? options_.offload.weights : options_.offload.state))
        continue;
      const auto update = written.find(node->id());
      by_update.emplace_back(
          update == written.end() ? InstructionId(plan_.instructions.size()) : update->second,
          Candidate{.kind = weights ? Candidate::Kind::weights : Candidate::Kind::state,
                    .bytes = bytes,
                    .variable = node.get(),
                    .late_readers = late_readers(*node, bytes)});
    }
    std::stable_sort(by_update.begin(), by_update.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const std::size_t i : spread(by_update.size()))
      found_.push_back(std::move(by_update[i].second));
  }

  // The readers of a variable before which it is not used for longer than fetching it takes.
  std::vector<const Node*> late_readers(const Node& variable, Bytes bytes) {
    if (readers_.empty()) find_readers();
    std::vector<const Node*> late;
    const std::vector<InstructionId>& list = readers_[variable.id()];
    for (std::size_t k = 1; k < list.size(); ++k)
      if (starts_[list[k].index()] - starts_[list[k - 1].index() + 1] > copies_ms(bytes))
        late.push_back(nodes_[list[k].index()].get());
    return late;
  }

  void find_readers() {
    for (const InstructionId i : plan_.instructions.ids())
      for (const Operand& input : plan_.instructions[i].inputs)
        if (const LeafId leaf = plan_.buffers[input.buffer].place.leaf)
          if (auto& list = readers_[plan_.leaves[leaf].node]; list.empty() || list.back() != i)
            list.push_back(i);
  }

  void add_activations() {
    std::vector<std::vector<InstructionId>> uses(plan_.values.size());
    for (const InstructionId i : plan_.instructions.ids()) {
      const auto add = [&](const Operand& operand) {
        auto& list = uses[operand.value.index()];
        if (list.empty() || list.back() != i) list.push_back(i);
      };
      for (const Operand& output : plan_.instructions[i].outputs) add(output);
      for (const Operand& input : plan_.instructions[i].inputs) add(input);
    }
    std::vector<std::pair<double, Candidate>> by_price;  // ms to recompute a byte
    for (const ValueId v : plan_.values.ids()) {
      const InstructionId maker = plan_.values[v].maker;
      const Bytes bytes = plan_.values[v].type.bytes();
      if (!maker || maker.number() >= graph_instructions_ || bytes < options_.offload.smallest)
        continue;
      const Instruction& instruction = plan_.instructions[maker];
      const int output = output_of(instruction, v);
      if (!plan_.buffers[instruction.outputs[static_cast<std::size_t>(output)].buffer].in_arena())
        continue;
      const auto& list = uses[v.index()];
      std::size_t widest = 0;
      double idle = 0.0;  // ms of the widest gap between two uses
      for (std::size_t k = 1; k < list.size(); ++k)
        if (const double gap = starts_[list[k].index()] - starts_[list[k - 1].index() + 1];
            gap > idle)
          widest = k, idle = gap;
      if (widest == 0 || list[widest].number() >= graph_instructions_ ||
          idle < std::max(copies_ms(bytes), shortest_gap * starts_.back()))
        continue;
      const double price = instruction.op->recomputable()
                               ? instruction.predicted_ms / static_cast<double>(bytes.count)
                               : 1.0;
      by_price.emplace_back(price, Candidate{.kind = Candidate::Kind::activation,
                                             .bytes = bytes,
                                             .activation = Tensor(nodes_[maker.index()], output),
                                             .until = nodes_[list[widest].index()].get()});
    }
    std::stable_sort(by_price.begin(), by_price.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (auto& [price, candidate] : by_price) found_.push_back(std::move(candidate));
  }

  static int output_of(const Instruction& instruction, ValueId value) {
    int output = 0;
    while (instruction.outputs[static_cast<std::size_t>(output)].value != value) ++output;
    return output;
  }

  // The time to copy a tensor away and back, with the fastest tier.
  double copies_ms(Bytes bytes) const {
    const Tier tier = options_.offload.budgets[Tier::host] > Bytes{} ? Tier::host : Tier::disk;
    return options_.rates.transfer_ms(tier, bytes, true) +
           options_.rates.transfer_ms(tier, bytes, false);
  }

  const Plan& plan_;
  const std::vector<std::shared_ptr<Node>>& nodes_;
  const Graph& graph_;
  const PlanOptions& options_;
  int graph_instructions_ = 0;
  std::vector<double> starts_;                                             // ms, by instruction
  std::unordered_map<std::uint64_t, std::vector<InstructionId>> readers_;  // by Node::id of a leaf
  std::vector<Candidate> found_;
};

}  // namespace

std::optional<Tier> home_of(const Node& node, const OffloadOptions& options) {
  if (&node.op() != &variable_op()) return {};
  const auto found = options.homes.find(node.id());
  return found == options.homes.end() ? node.tier() : found->second;
}

std::vector<Candidate> candidates(const Planner& planner) { return Finding(planner).run(); }

Placement place(const std::vector<Candidate>& candidates, Bytes bytes, const Planner& planner) {
  const OffloadOptions& options = planner.options().offload;
  ByTier<Bytes> room = options.budgets;
  Placement placement;
  Bytes away;
  for (const auto& node : planner.order())
    if (const auto home = home_of(*node, options); home && *home != Tier::device) {
      placement.variables[node.get()] = *home;
      room[*home] -= round_up(node->outputs()[0].bytes(), file_alignment);
    }
  for (const Candidate& candidate : candidates) {
    if (away >= bytes) break;
    const Bytes size = round_up(candidate.bytes, file_alignment);
    const Tier tier = room[Tier::host] >= size ? Tier::host : Tier::disk;
    if (room[tier] < size) continue;
    room[tier] -= size, away += candidate.bytes;
    if (candidate.variable) {
      placement.variables[candidate.variable] = tier;
      placement.fetched_again[candidate.variable].insert(candidate.late_readers.begin(),
                                                         candidate.late_readers.end());
    } else {
      placement.activations[candidate.activation] = {tier, candidate.until};
    }
  }
  return placement;
}

}  // namespace ebb::planning
