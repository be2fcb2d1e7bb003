#include "plan/offload/pooled_time.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "ops/transfer/transfer.h"

namespace ebb::planning {
namespace {

class Pool {
 public:
  Pool(const Plan& plan, std::span<const InstructionId> order, Bytes limit)
      : plan_(plan), limit_(limit.count) {
    free_at_.resize(plan.buffers.size());
    ending_.resize(order.size());
    // Live ranges, as places in the order.
    constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
    std::vector<std::size_t> first(plan.buffers.size(), never), last(plan.buffers.size());
    for (const Port& input : plan.inputs) first[input.buffer.index()] = 0;
    for (std::size_t at = 0; at < order.size(); ++at)
      for (const BufferId b : touched(order[at])) {
        first[b.index()] = std::min(first[b.index()], at);
        last[b.index()] = at;
      }
    std::vector<std::int64_t> change(order.size() + 1);
    for (const BufferId b : plan.buffers.ids()) {
      if (!plan.buffers[b].in_arena() || first[b.index()] == never || order.empty()) continue;
      change[first[b.index()]] += plan.buffers[b].size.count;
      change[last[b.index()] + 1] -= plan.buffers[b].size.count;
      ending_[last[b.index()]].push_back(b);
    }
    for (std::size_t at = 0; at < order.size(); ++at)
      live_.push_back((at > 0 ? live_.back() : 0) + change[at]);
  }

  // When the memory is free that the instruction at this place needs. They ask in their order.
  double free_for(std::size_t at) {
    double time = 0.0;
    while (live_[at] + held_ > limit_ && !ended_.empty()) {
      time = std::max(time, ended_.top().first);
      held_ -= ended_.top().second;
      ended_.pop();
    }
    return time;
  }

  // The instruction at this place uses its buffers until then.
  void use(std::size_t at, InstructionId i, double end) {
    for (const BufferId b : touched(i)) free_at_[b.index()] = std::max(free_at_[b.index()], end);
    for (const BufferId b : ending_[at]) {
      const std::int64_t size = plan_.buffers[b].size.count;
      ended_.emplace(free_at_[b.index()], size);
      held_ += size;
    }
  }

 private:
  const std::vector<BufferId>& touched(InstructionId i) {
    const Instruction& instruction = plan_.instructions[i];
    touched_.clear();
    for (const Operand& input : instruction.inputs) touched_.push_back(input.buffer);
    for (const Operand& output : instruction.outputs) touched_.push_back(output.buffer);
    if (instruction.workspace) touched_.push_back(instruction.workspace);
    return touched_;
  }

  using Ended = std::pair<double, std::int64_t>;  // when, and how many bytes
  const Plan& plan_;
  std::int64_t limit_;
  std::vector<BufferId> touched_;              // by the last instruction that was asked for
  std::vector<std::int64_t> live_;             // bytes, by place
  std::vector<std::vector<BufferId>> ending_;  // buffers, by the place of their last instruction
  std::vector<double> free_at_;                // by buffer
  std::priority_queue<Ended, std::vector<Ended>, std::greater<>> ended_;
  std::int64_t held_ = 0;  // bytes in `ended_`
};

}  // namespace

double pooled_ms(const Plan& plan, std::span<const InstructionId> order, Bytes limit) {
  enum Queue { compute, store, fetch };
  std::array<double, 3> free_at{};
  std::vector<double> ends(plan.instructions.size());
  Pool pool(plan, order, limit);
  for (std::size_t at = 0; at < order.size(); ++at) {
    const Instruction& instruction = plan.instructions[order[at]];
    const Queue queue = instruction.op == &fetch_op()   ? fetch
                        : instruction.op == &store_op() ? store
                                                        : compute;
    double start = std::max(free_at[queue], pool.free_for(at));
    for (const Operand& input : instruction.inputs)
      if (const InstructionId maker = plan.values[input.value].maker)
        start = std::max(start, ends[maker.index()]);
    ends[order[at].index()] = free_at[queue] = start + instruction.predicted_ms;
    pool.use(at, order[at], free_at[queue]);
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

}  // namespace ebb::planning
