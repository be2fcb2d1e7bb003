#include "plan/offload/start_early.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ops/transfer/transfer.h"
#include "plan/arena_layout.h"
#include "plan/lanes.h"

namespace ebb::planning {
namespace {

class StartEarly {
 public:
  StartEarly(const Lowered& lowered, Bytes limit)
      : plan_(lowered.plan), graph_instructions_(lowered.graph_instructions) {
    const int count = static_cast<int>(plan_.instructions.size());
    limit_ = std::max(limit, live_peak(plan_.buffers.rows(), count).bytes).count;
    find_times();
    find_live();
  }

  // The new position of every fetch: before which instruction it runs. Others have none. Fetches
  // keep the order in which they are read, and each moves no further than the one before it: those
  // that are needed first get the memory first. Otherwise memory would be full of what is needed
  // much later, and every other fetch would run just before its reader, which waits for it.
  std::vector<InstructionId> run() {
    const std::vector<double> latest = latest_starts();
    std::vector<InstructionId> positions(plan_.instructions.size());
    std::size_t before = 0;  // no fetch moves ahead of this instruction
    for (std::size_t k = 0; k < static_cast<std::size_t>(graph_instructions_); ++k) {
      const Instruction& fetch = plan_.instructions[InstructionId(k)];
      if (fetch.op != &fetch_op()) continue;
      const std::int64_t bytes = plan_.buffers[fetch.outputs[0].buffer].size.count;
      const std::size_t first = std::max(before, earliest(fetch));
      std::size_t at = k;
      while (at > first && starts_[at] > latest[k] && live_[at - 1] + bytes <= limit_)
        live_[--at] += bytes;
      positions[k] = InstructionId(at);
      before = at < k ? at : k + 1;
    }
    return positions;
  }

 private:
  // For every fetch, when it must start so that it and the fetches after it end in time, in ms.
  std::vector<double> latest_starts() const {
    std::vector<double> latest(plan_.instructions.size());
    double next = std::numeric_limits<double>::infinity();
    for (std::size_t k = static_cast<std::size_t>(graph_instructions_); k-- > 0;)
      if (const Instruction& fetch = plan_.instructions[InstructionId(k)]; fetch.op == &fetch_op())
        next = latest[k] = std::min(starts_[k], next) - fetch.predicted_ms;
    return latest;
  }

  // For every instruction, when the computation reaches it. Where copies take longer than the
  // computation, it waits for them, and a fetch need not start earlier than its lane is free.
  void find_times() {
    starts_ = times_of(plan_).starts;
    double next = std::numeric_limits<double>::infinity();
    for (std::size_t i = starts_.size(); i-- > 0;) {
      if (!is_transfer(*plan_.instructions[InstructionId(i)].op)) next = starts_[i];
      starts_[i] = next;
    }
  }

  void find_live() {
    live_.resize(plan_.instructions.size() + 1);
    for (const Buffer& buffer : plan_.buffers)
      if (buffer.in_arena())
        live_[buffer.first.index()] += buffer.size.count,
            live_[buffer.last.index() + 1] -= buffer.size.count;
    for (std::size_t i = 1; i < live_.size(); ++i) live_[i] += live_[i - 1];
  }

  // A stored value can be fetched after its store.
  std::size_t earliest(const Instruction& fetch) const {
    const InstructionId maker = plan_.values[fetch.inputs[0].value].maker;
    return maker ? maker.index() + 1 : 0;
  }

  const Plan& plan_;
  int graph_instructions_;
  std::int64_t limit_ = 0;
  std::vector<double> starts_;      // ms, by instruction: of the computation that follows
  std::vector<std::int64_t> live_;  // bytes of the arena, by instruction
};

}  // namespace

std::vector<InstructionId> early_order(const Lowered& lowered, Bytes limit) {
  const std::vector<InstructionId> positions = StartEarly(lowered, limit).run();
  std::vector<bool> moves(positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i)
    moves[i] = positions[i] && positions[i].index() < i;
  // For every instruction, the fetches that now run before it: it does not move itself.
  std::vector<std::vector<InstructionId>> before(positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (!moves[i]) continue;
    std::size_t at = positions[i].index();
    while (at < i && moves[at]) ++at;
    before[at].emplace_back(i);
  }
  std::vector<InstructionId> result;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    result.insert(result.end(), before[i].begin(), before[i].end());
    // One with all between it and its place moved stays where it is: it is before itself.
    if (!moves[i]) result.emplace_back(i);
  }
  return result;
}

Order start_early(const Lowered& lowered, const Order& order, Bytes limit) {
  std::unordered_map<const Node*, std::vector<std::shared_ptr<Node>>> before;
  std::unordered_set<const Node*> moved;
  std::vector<std::shared_ptr<Node>> fetches;  // since the last instruction that stays
  std::size_t next = 0;                        // the instruction that would come now
  std::vector<bool> done(lowered.nodes.size());
  for (const InstructionId i : early_order(lowered, limit)) {
    while (next < done.size() && done[next]) ++next;
    done[i.index()] = true;
    if (i.index() != next) {
      fetches.push_back(lowered.nodes[i.index()]);
      moved.insert(lowered.nodes[i.index()].get());
      continue;
    }
    if (!fetches.empty()) before[lowered.nodes[i.index()].get()] = std::exchange(fetches, {});
  }
  Order result;
  for (const auto& node : order) {
    if (moved.contains(node.get())) continue;
    if (const auto first = before.find(node.get()); first != before.end())
      result.insert(result.end(), first->second.begin(), first->second.end());
    result.push_back(node);
  }
  return result;
}

std::vector<InstructionId> positions_of(std::span<const std::shared_ptr<Node>> before,
                                        std::span<const std::shared_ptr<Node>> after) {
  std::unordered_map<const Node*, InstructionId> places;
  for (std::size_t i = 0; i < after.size(); ++i) places.emplace(after[i].get(), i);
  std::vector<InstructionId> result;
  // Nodes of copies at the end of the step are made anew each time; these copies do not move.
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto found = places.find(before[i].get());
    result.push_back(found == places.end() ? InstructionId(i) : found->second);
  }
  return result;
}

}  // namespace ebb::planning
