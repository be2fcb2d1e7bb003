#include "support/plan_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/storage.h"
#include "plan/request.h"

namespace ebb::test {
namespace {

bool live_at(const Buffer& buffer, InstructionId instruction) {
  return buffer.first <= instruction && instruction <= buffer.last;
}

bool overlap(const Buffer& a, const Buffer& b) {
  return a.in_arena() && b.in_arena() && a.place.offset < b.place.offset + b.size &&
         b.place.offset < a.place.offset + a.size;
}

void check_operand(const Plan& plan, const Operand& operand, InstructionId position) {
  const Buffer& buffer = plan.buffers[operand.buffer];
  EXPECT_TRUE(!buffer.in_arena() || live_at(buffer, position))
      << "instruction " << position.number() << " uses a buffer of instructions "
      << buffer.first.number() << " to " << buffer.last.number();
  if (operand.type.shape.elements() == 0) return;
  std::int64_t last = operand.layout.offset;
  for (int i = 0; i < operand.type.shape.rank(); ++i) {
    EXPECT_GE(operand.layout.strides[i], 0);
    last += (operand.type.shape[i] - 1) * operand.layout.strides[i];
  }
  EXPECT_GE(operand.layout.offset, 0);
  EXPECT_LE((last + 1) * size_of(operand.type.dtype).count, buffer.size.count)
      << "instruction " << position.number() << " reaches past its buffer";
}

void check_overlaps(const Plan& plan) {
  for (const BufferId a : plan.buffers.ids()) {
    const Buffer& first = plan.buffers[a];
    if (!first.in_arena()) continue;
    EXPECT_LE(first.place.offset + first.size, plan.arena());
    EXPECT_EQ(first.place.offset.count % buffer_alignment.count, 0);
    for (BufferId b = a + 1; plan.buffers.contains(b); ++b) {
      const Buffer& second = plan.buffers[b];
      const bool together = first.first <= second.last && second.first <= first.last;
      EXPECT_FALSE(together && overlap(first, second))
          << "buffers " << a.number() << " and " << b.number();
    }
  }
}

void check_totals(const Plan& plan) {
  Bytes peak, persistent;
  for (const InstructionId i : plan.instructions.ids()) {
    Bytes live;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.in_arena() && live_at(buffer, i)) live += buffer.size;
    peak = std::max(peak, live);
  }
  for (const Buffer& buffer : plan.buffers)
    if (plan.persists(buffer)) persistent += Storage::reservation(plan.device, buffer.size);
  if (!plan.instructions.empty()) {
    EXPECT_EQ(plan.live_peak, peak);
  }
  EXPECT_GE(plan.arena(), plan.live_peak);
  EXPECT_EQ(plan.persistent, persistent);
  EXPECT_EQ(plan.peak, plan.arena() + plan.persistent);
  EXPECT_EQ(plan.at_peak.total(), plan.live_peak + plan.persistent);
}

// Whether output `o` may lie where input `i` does.
bool may_write_over(const Instruction& instruction, int o, int i) {
  const Operand& in = instruction.inputs[static_cast<std::size_t>(i)];
  const Operand& out = instruction.outputs[static_cast<std::size_t>(o)];
  const auto pairs = instruction.op->in_place(instruction.attributes);
  return std::any_of(pairs.begin(), pairs.end(),
                     [&](const InPlace& p) { return p.output == o && p.input == i; }) &&
         in.type.shape == out.type.shape && size_of(in.type.dtype) == size_of(out.type.dtype) &&
         in.layout.offset == out.layout.offset && in.arg().contiguous();
}

// Runs the plan on names instead of numbers: which value does every buffer hold?
class Simulation {
 public:
  explicit Simulation(const Plan& plan) : plan_(plan), held_(plan.buffers.size()) {
    for (const Port& input : plan.inputs) held_[input.buffer.index()] = input.value;
    for (const BufferId b : plan.buffers.ids())
      if (const LeafId leaf = plan.buffers[b].place.leaf)
        held_[b.index()] = plan.leaves[leaf].value;
  }

  void run() {
    for (const InstructionId i : plan_.instructions.ids()) step(plan_.instructions[i], i);
  }

 private:
  void step(const Instruction& instruction, InstructionId position) {
    for (const Operand& input : instruction.inputs) {
      check_operand(plan_, input, position);
      EXPECT_EQ(held_[input.buffer.index()], input.value)
          << "instruction " << position.number() << " reads a buffer that holds something else";
    }
    if (instruction.workspace) {
      const Buffer& scratch = plan_.buffers[instruction.workspace];
      EXPECT_TRUE(live_at(scratch, position));
      TuningUse tuning(plan_.tuning);
      EXPECT_GE(scratch.size, kernel_of(plan_, instruction, Purpose::describe, tuning).workspace);
      write(instruction.workspace, {});
    }
    for (std::size_t o = 0; o < instruction.outputs.size(); ++o) {
      const Operand& output = instruction.outputs[o];
      check_operand(plan_, output, position);
      EXPECT_TRUE(output.arg().contiguous());
      EXPECT_EQ(plan_.values[output.value].maker, position);
      for (std::size_t k = 0; k < instruction.inputs.size(); ++k)
        if (instruction.inputs[k].buffer == output.buffer) {
          EXPECT_TRUE(may_write_over(instruction, static_cast<int>(o), static_cast<int>(k)))
              << "instruction " << position.number() << " (" << instruction.op->name()
              << ") writes over input " << k;
        }
    }
    for (const Operand& output : instruction.outputs) write(output.buffer, output.value);
  }

  // What is written is held; whatever lay in the same bytes of the arena is gone.
  void write(BufferId buffer, ValueId value) {
    for (const BufferId other : plan_.buffers.ids())
      if (overlap(plan_.buffers[other], plan_.buffers[buffer])) held_[other.index()] = {};
    held_[buffer.index()] = value;
  }

  const Plan& plan_;
  std::vector<ValueId> held_;  // of every buffer
};

}  // namespace

void check_plan(const Plan& plan) {
  Simulation(plan).run();
  check_layout(plan);
}

void check_layout(const Plan& plan) {
  check_overlaps(plan);
  check_totals(plan);
}

}  // namespace ebb::test
