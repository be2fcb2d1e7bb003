#include "report/tensor_names.h"

#include <fmt/core.h>

namespace ebb::report {
namespace {

class Naming {
 public:
  explicit Naming(const Plan& plan) : plan_(plan), gradient_(plan.buffers.size()) {
    for (const Buffer& buffer : plan.buffers) {
      const bool leaf = static_cast<bool>(buffer.place.leaf);
      names_.buffers.push_back(leaf && !plan.leaves[buffer.place.leaf].path.empty()
                                   ? plan.leaves[buffer.place.leaf].path
                                   : buffer.path);
    }
    for (std::size_t k = 0; k < plan.inputs.size(); ++k)
      name(plan.inputs[k].buffer, fmt::format("input {}", k));
    for (std::size_t k = 0; k < plan.outputs.size(); ++k)
      name(plan.outputs[k].buffer, fmt::format("result {}", k));
    // The logits are recognised by the loss that reads them, which comes after the product that
    // makes them. So buffers are named first, then instructions.
    for (const Instruction& instruction : plan.instructions) name_loss(instruction);
    for (const Instruction& instruction : plan.instructions)
      names_.instructions.push_back(name_of(instruction));
  }

  TensorNames take() { return std::move(names_); }

 private:
  void name(BufferId buffer, const std::string& text) {
    if (buffer && names_.buffers[buffer.index()].empty()) names_.buffers[buffer.index()] = text;
  }

  void name_loss(const Instruction& instruction) {
    const std::string_view op = instruction.op->name();
    if (op == "cross_entropy") {
      name(instruction.inputs.front().buffer, "logits");
    } else if (op == "cross_entropy_grad") {
      // It often overwrites the logits; the buffer then keeps the name "logits".
      const BufferId made = instruction.outputs.front().buffer;
      name(made, "gradient of the logits");
      gradient_[made.index()] = true;
    } else if (op.starts_with("linear_cross_entropy")) {
      name(instruction.workspace, "logits, some rows at a time");
      for (const Operand& output : instruction.outputs)
        if (plan_.buffers[output.buffer].category == Category::gradients)
          name(output.buffer, "gradient from the loss");
    } else if (instruction.path.empty() && reads_gradient(instruction)) {
      for (const Operand& output : instruction.outputs)
        name(output.buffer, "gradient through the logits");
    }
  }

  bool reads_gradient(const Instruction& instruction) const {
    for (const Operand& input : instruction.inputs)
      if (input.buffer && gradient_[input.buffer.index()]) return true;
    return false;
  }

  std::string name_of(const Instruction& instruction) const {
    if (!instruction.path.empty() || instruction.outputs.empty()) return instruction.path;
    const BufferId made = instruction.outputs.front().buffer;
    return made && !plan_.buffers[made].place.leaf ? names_.buffers[made.index()] : std::string();
  }

  const Plan& plan_;
  TensorNames names_;
  std::vector<bool> gradient_;  // buffers that hold the gradient of the logits
};

}  // namespace

TensorNames tensor_names(const Plan& plan) { return Naming(plan).take(); }

std::vector<std::string> tensor_types(const Plan& plan) {
  std::vector<std::string> types(plan.buffers.size());
  const auto add = [&](BufferId buffer, const TensorType& type) {
    if (buffer && types[buffer.index()].empty()) types[buffer.index()] = to_string(type);
  };
  for (const Port& port : plan.inputs) add(port.buffer, port.type);
  for (const Instruction& instruction : plan.instructions) {
    for (const Operand& input : instruction.inputs) add(input.buffer, input.type);
    for (const Operand& output : instruction.outputs) add(output.buffer, output.type);
  }
  return types;
}

}  // namespace ebb::report
