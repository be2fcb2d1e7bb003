#include "plan/recompute/step_model.h"

#include <algorithm>

#include "ebb/storage.h"
#include "ops/transfer/transfer.h"

namespace ebb::planning {
namespace {

// Copies to and from other tiers overlap with other work. The search takes a small part of their
// time into account; what they really cost is known when the lanes are ordered (makespan).
constexpr double transfer_share = 0.1;

template <class T>
void insert_once(std::vector<T>& list, const T& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

}  // namespace

StepModel::StepModel(const Plan& plan, int graph_instructions) : graph_steps(graph_instructions) {
  // The value that every buffer holds now; -1: the leaf's value from before the step.
  std::vector<int> held(plan.buffers.size(), -1);
  for (const Port& input : plan.inputs) {
    held[input.buffer.index()] = static_cast<int>(values.size());
    values.push_back(
        {.bytes = plan.buffers[input.buffer].size.count, .producer = -1, .positions = {}});
  }
  // For buffers of leaves: the steps that read the value from before the step.
  std::vector<std::vector<int>> readers(plan.buffers.size());

  for (const Instruction& instruction : plan.instructions) {
    const int number = static_cast<int>(steps.size());
    ModelStep step;
    step.ms = instruction.predicted_ms * (is_transfer(*instruction.op) ? transfer_share : 1.0);
    step.recomputable = instruction.op->recomputable();
    step.backward = instruction.marks.backward;
    step.valid_until = static_cast<int>(plan.instructions.size());
    if (instruction.workspace) step.workspace = plan.buffers[instruction.workspace].size.count;
    for (const Operand& operand : instruction.inputs) {
      const int value = held[operand.buffer.index()];
      if (value < 0)
        insert_once(readers[operand.buffer.index()], number);
      else
        insert_once(step.inputs, value);
    }
    // Steps that read results of backward count as backward, unless they are in a block or a
    // checkpointed region: a second pass of the model with parameters computed from gradients is
    // forward.
    if (instruction.marks.block == 0 && instruction.marks.checkpoint == 0)
      for (int value : step.inputs) {
        const int producer = values[static_cast<std::size_t>(value)].producer;
        step.backward |= producer >= 0 && steps[static_cast<std::size_t>(producer)].backward;
      }
    for (const InPlace& pair : instruction.overwritable) {
      const Operand& operand = instruction.inputs[static_cast<std::size_t>(pair.input)];
      step.overwrites.push_back({pair.output, held[operand.buffer.index()]});
    }
    for (const Operand& operand : instruction.outputs) {
      const std::size_t index = operand.buffer.index();
      const Place& place = plan.buffers[operand.buffer].place;
      if (place.leaf)
        for (int reader : readers[index])
          if (reader != number)
            steps[static_cast<std::size_t>(reader)].valid_until =
                std::min(steps[static_cast<std::size_t>(reader)].valid_until, number);
      if (place.leaf) step.valid_until = number;
      held[index] = static_cast<int>(values.size());
      step.outputs.push_back(held[index]);
      values.push_back({.bytes = operand.type.bytes().count,
                        .producer = number,
                        .in_arena = plan.buffers[operand.buffer].in_arena(),
                        .positions = {}});
      values.back().bytes =
          round_up({values.back().bytes}, plan.spaces[arena_space].alignment).count;
    }
    if (number >= graph_steps)
      for (int value : step.inputs) values[static_cast<std::size_t>(value)].copied_out = true;
    steps.push_back(std::move(step));
  }
  finish();
}

void StepModel::finish() {
  for (ModelValue& value : values) value.positions = {value.producer};
  for (std::size_t s = 0; s < steps.size(); ++s)
    for (int value : steps[s].inputs)
      values[static_cast<std::size_t>(value)].positions.push_back(static_cast<int>(s));
}

double StepModel::keep_all_ms() const {
  double total = 0.0;
  for (const ModelStep& step : steps) total += step.ms;
  return total;
}

}  // namespace ebb::planning
