#include "plan/lanes.h"

#include <algorithm>

namespace ebb {
namespace {

// A buffer that an instruction reads or writes.
struct Touched {
  BufferId buffer;
  bool written;
};

std::vector<Touched> touched(const Instruction& instruction) {
  std::vector<Touched> all;
  for (const Operand& input : instruction.inputs) all.push_back({input.buffer, false});
  for (const Operand& output : instruction.outputs) all.push_back({output.buffer, true});
  if (instruction.workspace) all.push_back({instruction.workspace, true});
  return all;
}

// Whether two instructions access the same bytes and at least one of them writes.
class Conflicts {
 public:
  explicit Conflicts(const Plan& plan) : plan_(plan) {
    for (const Instruction& instruction : plan.instructions)
      touched_.push_back(touched(instruction));
  }

  bool operator()(InstructionId a, InstructionId b) const {
    for (const Touched& x : touched_[a.index()])
      for (const Touched& y : touched_[b.index()])
        if ((x.written || y.written) && overlap(x.buffer, y.buffer)) return true;
    return false;
  }

 private:
  bool overlap(BufferId a, BufferId b) const {
    return a == b || share_bytes(plan_.buffers[a], plan_.buffers[b]);
  }

  const Plan& plan_;
  std::vector<std::vector<Touched>> touched_;
};

// For every instruction of the second lane: the first instruction of the plan that starts after it
// has ended, by predicted times. The predicted time is doubled, since the lanes share the device.
std::vector<InstructionId> expected_ends(const Plan& plan) {
  std::vector<InstructionId> ends(plan.instructions.size());
  std::vector<std::pair<double, InstructionId>> running;  // end in ms, instruction; in order
  double now = 0.0, free_at = 0.0;
  std::size_t first = 0;
  for (const InstructionId i : plan.instructions.ids()) {
    const Instruction& instruction = plan.instructions[i];
    for (; first < running.size() && running[first].first <= now; ++first)
      ends[running[first].second.index()] = i;
    if (plan.runs_beside(instruction)) {
      free_at = std::max(free_at, now) + 2.0 * instruction.predicted_ms;
      running.emplace_back(free_at, i);
    } else {
      now += instruction.predicted_ms;
    }
  }
  for (; first < running.size(); ++first)
    ends[running[first].second.index()] = InstructionId(plan.instructions.size());
  return ends;
}

// Live bytes of the arena at every instruction.
std::vector<std::int64_t> live_bytes(const Plan& plan) {
  std::vector<std::int64_t> live(plan.instructions.size() + 1);
  for (const Buffer& buffer : plan.buffers)
    if (buffer.in_arena())
      live[buffer.first.index()] += buffer.size.count,
          live[buffer.last.index() + 1] -= buffer.size.count;
  for (std::size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  return live;
}

}  // namespace

void mark_beside(Plan& plan) {
  const LaneId compute(0), beside = plan.lanes.add({Lane::Kind::beside});
  std::vector<bool> wanted(plan.buffers.size());  // used later by the first lane
  for (std::size_t i = plan.instructions.size(); i-- > 0;) {
    Instruction& instruction = plan.instructions[InstructionId(i)];
    const auto free = [&](const Operand& output) { return !wanted[output.buffer.index()]; };
    // Only elementwise work moves: products, attention and convolutions fill the device alone.
    if (instruction.work == Work::elementwise && !instruction.outputs.empty() &&
        std::all_of(instruction.outputs.begin(), instruction.outputs.end(), free)) {
      instruction.lane = beside;
      continue;
    }
    for (const Touched& use : touched(instruction)) wanted[use.buffer.index()] = true;
  }
  // The second lane must begin by waiting for the first (see order_lanes), so instructions before
  // the first one of the first lane stay in that lane.
  for (Instruction& instruction : plan.instructions) {
    if (instruction.lane != beside) break;
    instruction.lane = compute;
  }
}

void stretch_lives(Plan& plan, Bytes limit) {
  const std::vector<InstructionId> ends = expected_ends(plan);
  std::vector<std::int64_t> live = live_bytes(plan);
  for (const InstructionId i : plan.instructions.ids()) {
    if (!plan.runs_beside(plan.instructions[i])) continue;
    for (const Touched& use : touched(plan.instructions[i])) {
      Buffer& buffer = plan.buffers[use.buffer];
      if (!buffer.in_arena()) continue;
      while (buffer.last + 1 < ends[i.index()] &&
             live[buffer.last.index() + 1] + buffer.size.count <= limit.count)
        live[(++buffer.last).index()] += buffer.size.count;
    }
  }
}

void order_lanes(Plan& plan) {
  const Conflicts conflict(plan);
  std::vector<InstructionId> beside, main;  // the instructions of each lane so far
  // The last instruction of the first lane that the second has waited for, and the reverse.
  InstructionId main_done, beside_done;
  for (const InstructionId i : plan.instructions.ids()) {
    Instruction& instruction = plan.instructions[i];
    const bool is_beside = plan.runs_beside(instruction);
    const std::vector<InstructionId>& others = is_beside ? main : beside;
    InstructionId& done = is_beside ? main_done : beside_done;
    instruction.waits.clear();
    for (std::size_t k = others.size(); k-- > 0 && others[k] > done;) {
      if (!conflict(others[k], i)) continue;
      instruction.waits = {done = others[k]};
      break;
    }
    (is_beside ? beside : main).push_back(i);
    if (is_beside && beside.size() == 1 && instruction.waits.empty())
      instruction.waits = {main_done = main.back()};  // the second lane always begins by waiting
  }
}

}  // namespace ebb
