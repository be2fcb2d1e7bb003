#include "plan/request.h"

#include <vector>

namespace ebb {

Kernel kernel_of(const Plan& plan, const Instruction& instruction, Purpose purpose,
                 TuningUse& tuning) {
  std::vector<Arg> inputs, outputs;
  for (const Operand& operand : instruction.inputs) inputs.push_back(operand.arg());
  for (const Operand& operand : instruction.outputs) outputs.push_back(operand.arg());
  return instruction.op->bind(
      {*instruction.op, inputs, outputs, {plan.device, plan.tf32, purpose, &tuning}},
      instruction.attributes);
}

}  // namespace ebb
