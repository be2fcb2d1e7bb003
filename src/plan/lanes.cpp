#include "plan/lanes.h"

#include <algorithm>

namespace ebb {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Bytes that an instruction reads or writes.
struct Touched {
  int buffer;
  bool written;
};

std::vector<Touched> touched(const Instruction& instruction) {
  std::vector<Touched> all;
  for (const Operand& input : instruction.inputs) all.push_back({input.buffer, false});
  for (const Operand& output : instruction.outputs) all.push_back({output.buffer, true});
  if (instruction.workspace >= 0) all.push_back({instruction.workspace, true});
  return all;
}

// Whether the order of two instructions matters.
class Conflicts {
 public:
  explicit Conflicts(const Plan& plan) : plan_(plan) {
    for (const Instruction& instruction : plan.instructions)
      touched_.push_back(touched(instruction));
  }

  bool operator()(int a, int b) const {
    for (const Touched& x : touched_[at(a)])
      for (const Touched& y : touched_[at(b)])
        if ((x.written || y.written) && overlap(x.buffer, y.buffer)) return true;
    return false;
  }

 private:
  bool overlap(int a, int b) const {
    if (a == b) return true;
    const Buffer &x = plan_.buffers[at(a)], &y = plan_.buffers[at(b)];
    return x.in_arena() && y.in_arena() && x.offset < y.offset + y.size &&
           y.offset < x.offset + x.size;
  }

  const Plan& plan_;
  std::vector<std::vector<Touched>> touched_;
};

// For every instruction aside, the first instruction of the main lane that starts when it has
// ended, by the planner's clock. Aside it shares the device, and is given twice its time.
std::vector<int> expected_ends(const Plan& plan) {
  std::vector<int> ends(plan.instructions.size(), -1);
  std::vector<std::pair<double, int>> running;  // end in ms, instruction; in order
  double now = 0.0, free_at = 0.0;
  std::size_t first = 0;
  for (int i = 0; i < static_cast<int>(plan.instructions.size()); ++i) {
    const Instruction& instruction = plan.instructions[at(i)];
    for (; first < running.size() && running[first].first <= now; ++first)
      ends[at(running[first].second)] = i;
    if (instruction.aside) {
      free_at = std::max(free_at, now) + 2.0 * instruction.predicted_ms;
      running.emplace_back(free_at, i);
    } else {
      now += instruction.predicted_ms;
    }
  }
  for (; first < running.size(); ++first)
    ends[at(running[first].second)] = static_cast<int>(plan.instructions.size());
  return ends;
}

// Live bytes of the arena at every instruction.
std::vector<std::int64_t> live_bytes(const Plan& plan) {
  std::vector<std::int64_t> live(plan.instructions.size() + 1);
  for (const Buffer& buffer : plan.buffers)
    if (buffer.in_arena())
      live[at(buffer.first)] += buffer.size.count, live[at(buffer.last) + 1] -= buffer.size.count;
  for (std::size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  return live;
}

}  // namespace

void mark_aside(Plan& plan) {
  std::vector<bool> wanted(plan.buffers.size());  // used by the main lane later on
  for (int i = static_cast<int>(plan.instructions.size()) - 1; i >= 0; --i) {
    Instruction& instruction = plan.instructions[at(i)];
    const auto free = [&](const Operand& output) { return !wanted[at(output.buffer)]; };
    // Products and their like fill the device by themselves.
    instruction.aside = instruction.work == Work::elementwise && !instruction.outputs.empty() &&
                        std::all_of(instruction.outputs.begin(), instruction.outputs.end(), free);
    if (!instruction.aside)
      for (const Touched& use : touched(instruction)) wanted[at(use.buffer)] = true;
  }
  // The second lane begins with something to wait for: what runs before that is of the first.
  for (Instruction& instruction : plan.instructions) {
    if (!instruction.aside) break;
    instruction.aside = false;
  }
}

void stretch_lives(Plan& plan, Bytes limit) {
  const std::vector<int> ends = expected_ends(plan);
  std::vector<std::int64_t> live = live_bytes(plan);
  for (int i = 0; i < static_cast<int>(plan.instructions.size()); ++i) {
    if (!plan.instructions[at(i)].aside) continue;
    for (const Touched& use : touched(plan.instructions[at(i)])) {
      Buffer& buffer = plan.buffers[at(use.buffer)];
      if (!buffer.in_arena()) continue;
      while (buffer.last + 1 < ends[at(i)] &&
             live[at(buffer.last) + 1] + buffer.size.count <= limit.count)
        live[at(++buffer.last)] += buffer.size.count;
    }
  }
}

void order_lanes(Plan& plan) {
  const Conflicts conflict(plan);
  std::vector<int> aside, main;         // the instructions of each lane so far
  int main_done = -1, aside_done = -1;  // what the second lane has waited for, and the first
  for (int i = 0; i < static_cast<int>(plan.instructions.size()); ++i) {
    Instruction& instruction = plan.instructions[at(i)];
    std::vector<int>& others = instruction.aside ? main : aside;
    int& done = instruction.aside ? main_done : aside_done;
    instruction.after = -1;
    for (std::size_t k = others.size(); k-- > 0 && others[k] > done;) {
      if (!conflict(others[k], i)) continue;
      instruction.after = done = others[k];
      break;
    }
    (instruction.aside ? aside : main).push_back(i);
    if (instruction.aside && aside.size() == 1 && instruction.after < 0)
      instruction.after = main_done = main.back();  // a lane begins by waiting
  }
}

}  // namespace ebb
