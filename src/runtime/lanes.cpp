#include "runtime/lanes.h"

namespace ebb {

Lanes::Lanes(const Plan& plan) : mark_of_(plan.instructions.size(), -1) {
  int marks = 0;
  const auto mark = [&](int instruction) {
    int& number = mark_of_[static_cast<std::size_t>(instruction)];
    if (number < 0) number = marks++;
  };
  for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
    if (plan.instructions[i].aside) last_aside_ = static_cast<int>(i);
    if (plan.instructions[i].after >= 0) mark(plan.instructions[i].after);
  }
  if (last_aside_ < 0) return;
  mark(last_aside_);
  marks_.emplace(plan.device, static_cast<std::size_t>(marks));
}

void Lanes::start(const Plan& plan, std::span<const KernelArgs> args) const {
  const auto await = [&](int instruction, cuda::Lane lane) {
    marks_->await(static_cast<std::size_t>(mark_of_[static_cast<std::size_t>(instruction)]), lane);
  };
  for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const cuda::Lane lane = lane_of(instruction);
    if (instruction.after >= 0) await(instruction.after, lane);
    instruction.kernel.run(args[i]);
    if (mark_of_[i] >= 0) marks_->set(static_cast<std::size_t>(mark_of_[i]), lane);
  }
  if (last_aside_ >= 0) await(last_aside_, cuda::Lane::main);
}

}  // namespace ebb
