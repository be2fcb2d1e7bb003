#include "plan/lanes.h"

#include <algorithm>
#include <array>

#include "ops/transfer/transfer.h"

namespace ebb::planning {
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

// For every instruction of a lane other than the first: the first instruction of the first lane
// that starts after it has ended. If copies take longer than the computation, the first lane waits
// for them, so memory is reserved for copies in progress and not for later ones.
std::vector<InstructionId> expected_ends(const Plan& plan) {
  const Times times = times_of(plan);
  std::vector<double> starts;  // of the first lane, in order
  std::vector<InstructionId> first_lane;
  for (const InstructionId i : plan.instructions.ids())
    if (plan.instructions[i].lane == LaneId(0))
      starts.push_back(times.starts[i.index()]), first_lane.push_back(i);
  std::vector<InstructionId> ends(plan.instructions.size());
  for (const InstructionId i : plan.instructions.ids()) {
    const auto next = std::lower_bound(starts.begin(), starts.end(), times.ends[i.index()]);
    ends[i.index()] = next == starts.end()
                          ? InstructionId(plan.instructions.size())
                          : first_lane[static_cast<std::size_t>(next - starts.begin())];
  }
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

// The second lane shares the device with the first, so its instructions count twice.
Times times_of(const Plan& plan) {
  enum Queue { compute, beside, store, fetch };
  std::array<double, 4> free_at{};
  Times times;
  for (const Instruction& instruction : plan.instructions) {
    const Queue queue = instruction.op == &fetch_op()   ? fetch
                        : instruction.op == &store_op() ? store
                        : plan.runs_beside(instruction) ? beside
                                                        : compute;
    double start = free_at[queue];
    for (const Operand& input : instruction.inputs)
      if (const InstructionId maker = plan.values[input.value].maker)
        start = std::max(start, times.ends[maker.index()]);
    times.starts.push_back(start);
    free_at[queue] = start + (queue == beside ? 2.0 : 1.0) * instruction.predicted_ms;
    times.ends.push_back(free_at[queue]);
  }
  return times;
}

void mark_transfers(Plan& plan) {
  if (std::none_of(plan.instructions.begin(), plan.instructions.end(),
                   [](const Instruction& i) { return is_transfer(*i.op); }))
    return;
  const LaneId store = plan.lanes.add({Lane::Kind::store}),
               fetch = plan.lanes.add({Lane::Kind::fetch});
  for (Instruction& instruction : plan.instructions)
    if (is_transfer(*instruction.op))
      instruction.lane = instruction.op == &fetch_op() ? fetch : store;
}

void mark_beside(Plan& plan) {
  const LaneId compute(0), beside = plan.lanes.add({Lane::Kind::beside});
  std::vector<bool> wanted(plan.buffers.size());  // used later by the first lane
  for (std::size_t i = plan.instructions.size(); i-- > 0;) {
    Instruction& instruction = plan.instructions[InstructionId(i)];
    const auto free = [&](const Operand& output) { return !wanted[output.buffer.index()]; };
    if (is_transfer(*instruction.op)) continue;
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
    if (instruction.lane == compute) break;
    if (instruction.lane == beside) instruction.lane = compute;
  }
}

void stretch_lives(Plan& plan, Bytes limit) {
  const std::vector<InstructionId> ends = expected_ends(plan);
  std::vector<std::int64_t> live = live_bytes(plan);
  for (const InstructionId i : plan.instructions.ids()) {
    if (plan.instructions[i].lane == LaneId(0)) continue;
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
  const std::size_t count = plan.lanes.size();
  std::vector<std::vector<InstructionId>> so_far(count);  // the instructions of each lane
  // For each lane, the last instruction of every lane that is known to have ended when this lane's
  // next instruction starts. `after` holds the same for each instruction, at its end.
  std::vector<std::vector<InstructionId>> known(count, std::vector<InstructionId>(count));
  std::vector<std::vector<InstructionId>> after(plan.instructions.size());
  for (const InstructionId i : plan.instructions.ids()) {
    Instruction& instruction = plan.instructions[i];
    const std::size_t own = instruction.lane.index();
    instruction.waits.clear();
    const auto wait_for = [&](InstructionId other) {
      instruction.waits.push_back(other);
      for (std::size_t l = 0; l < count; ++l)
        known[own][l] = std::max(known[own][l], after[other.index()][l]);
    };
    for (std::size_t l = 0; l < count; ++l)
      for (std::size_t k = so_far[l].size(); l != own && k-- > 0 && so_far[l][k] > known[own][l];) {
        if (!conflict(so_far[l][k], i)) continue;
        wait_for(so_far[l][k]);
        break;
      }
    so_far[own].push_back(i);
    // The second lane always begins by waiting, as a graph that captures it requires.
    if (plan.runs_beside(instruction) && so_far[own].size() == 1 && instruction.waits.empty())
      wait_for(so_far[0].back());
    known[own][own] = i;
    after[i.index()] = known[own];
  }
}

double makespan(const Plan& plan) {
  std::vector<double> free_at(plan.lanes.size()), ends(plan.instructions.size());
  double last = 0.0;
  for (const InstructionId i : plan.instructions.ids()) {
    const Instruction& instruction = plan.instructions[i];
    const std::size_t lane = instruction.lane.index();
    double start = free_at[lane];
    for (const InstructionId other : instruction.waits)
      start = std::max(start, ends[other.index()]);
    free_at[lane] = ends[i.index()] = start + instruction.predicted_ms;
    if (plan.runs_beside(instruction)) free_at[0] += instruction.predicted_ms;
    last = std::max({last, free_at[lane], free_at[0]});
  }
  return last;
}

}  // namespace ebb::planning
