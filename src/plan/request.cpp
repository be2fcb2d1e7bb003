#include "plan/request.h"

#include <vector>

namespace ebb {

Kernel bind(const Plan& plan, const Instruction& instruction) {
  std::vector<Arg> inputs, outputs;
  for (const Operand& operand : instruction.inputs) inputs.push_back(operand.arg());
  for (const Operand& operand : instruction.outputs) outputs.push_back(operand.arg());
  return instruction.op->bind({*instruction.op, inputs, outputs, plan.device, plan.tf32},
                              instruction.attributes);
}

Bytes workspace_of(const Plan& plan, const Instruction& instruction) {
  return bind(plan, instruction).workspace;
}

}  // namespace ebb
