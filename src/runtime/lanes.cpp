#include "runtime/lanes.h"

namespace ebb {

Lanes::Lanes(const Plan& plan) : mark_of_(plan.instructions.size(), -1) {
  int marks = 0;
  const auto mark = [&](InstructionId instruction) {
    int& number = mark_of_[instruction.index()];
    if (number < 0) number = marks++;
  };
  for (const InstructionId i : plan.instructions.ids()) {
    if (plan.runs_beside(plan.instructions[i])) last_beside_ = i;
    for (const InstructionId other : plan.instructions[i].waits) mark(other);
  }
  if (!last_beside_) return;
  mark(last_beside_);
  marks_.emplace(plan.device, static_cast<std::size_t>(marks));
}

void Lanes::start(const Plan& plan, std::span<const Kernel> kernels,
                  std::span<const KernelArgs> args) const {
  const auto await = [&](InstructionId instruction, cuda::Lane lane) {
    marks_->await(static_cast<std::size_t>(mark_of_[instruction.index()]), lane);
  };
  for (const InstructionId i : plan.instructions.ids()) {
    const Instruction& instruction = plan.instructions[i];
    const cuda::Lane lane = lane_of(plan, instruction);
    for (const InstructionId other : instruction.waits) await(other, lane);
    kernels[i.index()].run(args[i.index()]);
    if (const int mark = mark_of_[i.index()]; mark >= 0)
      marks_->set(static_cast<std::size_t>(mark), lane);
  }
  if (last_beside_) await(last_beside_, cuda::Lane::main);
}

}  // namespace ebb
