#include "runtime/lanes.h"

#include <array>
#include <utility>

namespace ebb {

cuda::Lane lane_of(const Plan& plan, const Instruction& instruction) {
  switch (plan.lanes[instruction.lane].kind) {
    case Lane::Kind::beside:
      return cuda::Lane::aside;
    case Lane::Kind::store:
      return cuda::Lane::store;
    case Lane::Kind::fetch:
      return cuda::Lane::fetch;
    case Lane::Kind::compute:
      break;
  }
  return cuda::Lane::main;
}

Lanes::Lanes(const Plan& plan) : mark_of_(plan.instructions.size(), -1) {
  int marks = 1;
  const auto mark = [&](InstructionId instruction) {
    int& number = mark_of_[instruction.index()];
    if (number < 0) number = marks++;
  };
  std::vector<InstructionId> last(plan.lanes.size());
  for (const InstructionId i : plan.instructions.ids()) {
    last[plan.instructions[i].lane.index()] = i;
    for (const InstructionId other : plan.instructions[i].waits) mark(other);
  }
  for (std::size_t l = 1; l < last.size(); ++l)
    if (last[l]) mark(last[l]), last_.push_back(last[l]);
  if (!last_.empty()) marks_.emplace(plan.device, static_cast<std::size_t>(marks));
}

void Lanes::start(const Plan& plan, std::span<const Kernel> kernels,
                  std::span<const KernelArgs> args, std::span<const Launched> launches) const {
  const auto await = [&](InstructionId instruction, cuda::Lane lane) {
    marks_->await(static_cast<std::size_t>(mark_of_[instruction.index()]), lane);
  };
  // Every lane begins by waiting for the main one: for the previous step, and because a graph
  // captures only streams that do.
  std::array<bool, cuda::lane_count> begun{};
  begun[static_cast<std::size_t>(cuda::Lane::main)] = true;
  if (marks_) marks_->set(0, cuda::Lane::main);
  for (const Launched& launched : launches) {
    const InstructionId i = launched.instructions.front();
    const Instruction& instruction = plan.instructions[i];
    const cuda::Lane lane = lane_of(plan, instruction);
    if (!std::exchange(begun[static_cast<std::size_t>(lane)], true) && instruction.waits.empty())
      marks_->await(0, lane);
    for (const InstructionId other : instruction.waits) await(other, lane);
    if (launched.launch)
      launched.launch(launched.tasks, launched.dtype, args[i.index()]);
    else
      kernels[i.index()].run(args[i.index()]);
    for (const InstructionId done : launched.instructions)
      if (const int mark = mark_of_[done.index()]; mark >= 0)
        marks_->set(static_cast<std::size_t>(mark), lane);
  }
  for (const InstructionId last : last_) await(last, cuda::Lane::main);
}

}  // namespace ebb
