#include "support/plan_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "ebb/storage.h"

namespace ebb::test {
namespace {

// The tensor whose bytes a view looks at.
Tensor root_of(Tensor t) {
  while (t.node()->op().is_view()) t = t.node()->inputs()[0];
  return t;
}

const Buffer& buffer_of(const Plan& plan, int index) {
  return plan.buffers.at(static_cast<std::size_t>(index));
}

bool live_at(const Buffer& buffer, int instruction) {
  return buffer.first <= instruction && instruction <= buffer.last;
}

bool overlap(const Buffer& a, const Buffer& b) {
  return a.in_arena() && b.in_arena() && a.offset < b.offset + b.size &&
         b.offset < a.offset + a.size;
}

void check_operand(const Plan& plan, const Operand& operand, int position) {
  const Buffer& buffer = buffer_of(plan, operand.buffer);
  EXPECT_TRUE(!buffer.in_arena() || live_at(buffer, position))
      << "instruction " << position << " uses a buffer of instructions " << buffer.first << " to "
      << buffer.last;
  if (operand.type.shape.elements() == 0) return;
  std::int64_t last = operand.layout.offset;
  for (int i = 0; i < operand.type.shape.rank(); ++i) {
    EXPECT_GE(operand.layout.strides[i], 0);
    last += (operand.type.shape[i] - 1) * operand.layout.strides[i];
  }
  EXPECT_GE(operand.layout.offset, 0);
  EXPECT_LE((last + 1) * size_of(operand.type.dtype).count, buffer.size.count)
      << "instruction " << position << " reaches past its buffer";
}

void check_overlaps(const Plan& plan) {
  for (std::size_t a = 0; a < plan.buffers.size(); ++a) {
    const Buffer& first = plan.buffers[a];
    if (!first.in_arena()) continue;
    EXPECT_LE(first.offset + first.size, plan.arena);
    EXPECT_EQ(first.offset.count % buffer_alignment.count, 0);
    for (std::size_t b = a + 1; b < plan.buffers.size(); ++b) {
      const Buffer& second = plan.buffers[b];
      const bool together = first.first <= second.last && second.first <= first.last;
      EXPECT_FALSE(together && overlap(first, second)) << "buffers " << a << " and " << b;
    }
  }
}

void check_totals(const Plan& plan) {
  Bytes peak, persistent;
  for (int i = 0; i < static_cast<int>(plan.instructions.size()); ++i) {
    Bytes live;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.in_arena() && live_at(buffer, i)) live += buffer.size;
    peak = std::max(peak, live);
  }
  for (const Buffer& buffer : plan.buffers)
    if (!buffer.in_arena()) persistent += Storage::reservation(plan.device, buffer.size);
  if (!plan.instructions.empty()) {
    EXPECT_EQ(plan.live_peak, peak);
  }
  EXPECT_GE(plan.arena, plan.live_peak);
  EXPECT_EQ(plan.persistent, persistent);
  EXPECT_EQ(plan.peak, plan.arena + plan.persistent);
  EXPECT_EQ(plan.at_peak.total(), plan.live_peak + plan.persistent);
}

// Whether output `o` may lie where input `i` does.
bool may_write_over(const Instruction& instruction, int o, int i) {
  const Operand& in = instruction.inputs[static_cast<std::size_t>(i)];
  const Operand& out = instruction.outputs[static_cast<std::size_t>(o)];
  const auto pairs = instruction.node->op().in_place(instruction.node->attributes());
  return std::any_of(pairs.begin(), pairs.end(),
                     [&](const InPlace& p) { return p.output == o && p.input == i; }) &&
         in.type.shape == out.type.shape && size_of(in.type.dtype) == size_of(out.type.dtype) &&
         in.layout.offset == out.layout.offset && in.arg().contiguous();
}

// Runs the plan on names instead of numbers: which tensor does every buffer hold?
class Simulation {
 public:
  explicit Simulation(const Plan& plan) : plan_(plan), held_(plan.buffers.size()) {
    // Leaves are there before the first instruction; they are recognised when first read.
    written_.resize(plan.buffers.size(), false);
  }

  void run() {
    for (std::size_t i = 0; i < plan_.instructions.size(); ++i)
      step(plan_.instructions[i], static_cast<int>(i));
  }

 private:
  void step(const Instruction& instruction, int position) {
    ASSERT_EQ(instruction.inputs.size(), instruction.node->inputs().size());
    for (std::size_t k = 0; k < instruction.inputs.size(); ++k) {
      check_operand(plan_, instruction.inputs[k], position);
      read(instruction.inputs[k].buffer, root_of(instruction.node->inputs()[k]), position);
    }
    if (instruction.workspace >= 0) {
      const Buffer& scratch = buffer_of(plan_, instruction.workspace);
      EXPECT_TRUE(live_at(scratch, position));
      EXPECT_GE(scratch.size, instruction.kernel.workspace);
      write(instruction.workspace, std::nullopt);
    }
    for (std::size_t o = 0; o < instruction.outputs.size(); ++o) {
      const Operand& output = instruction.outputs[o];
      check_operand(plan_, output, position);
      EXPECT_TRUE(output.arg().contiguous());
      for (std::size_t k = 0; k < instruction.inputs.size(); ++k)
        if (instruction.inputs[k].buffer == output.buffer) {
          EXPECT_TRUE(may_write_over(instruction, static_cast<int>(o), static_cast<int>(k)))
              << "instruction " << position << " (" << instruction.node->op().name()
              << ") writes over input " << k;
        }
    }
    for (std::size_t o = 0; o < instruction.outputs.size(); ++o)
      write(instruction.outputs[o].buffer, Tensor(instruction.node, static_cast<int>(o)));
  }

  void read(int buffer, const Tensor& expected, int position) {
    const std::size_t b = static_cast<std::size_t>(buffer);
    if (!written_[b]) {
      EXPECT_TRUE(expected.node()->inputs().empty())
          << "instruction " << position << " reads what nobody has written";
      if (plan_.buffers[b].persistent) {
        EXPECT_EQ(plan_.buffers[b].persistent, expected.node());
      } else {
        EXPECT_TRUE(std::count(plan_.input_buffers.begin(), plan_.input_buffers.end(), buffer));
      }
      return;
    }
    EXPECT_TRUE(held_[b] && *held_[b] == expected)
        << "instruction " << position << " reads a buffer that holds something else by then";
  }

  // What is written is held; whatever lay in the same bytes of the arena is gone.
  void write(int buffer, std::optional<Tensor> value) {
    const Buffer& target = buffer_of(plan_, buffer);
    for (std::size_t other = 0; other < plan_.buffers.size(); ++other)
      if (overlap(plan_.buffers[other], target)) held_[other].reset(), written_[other] = true;
    held_[static_cast<std::size_t>(buffer)] = std::move(value);
    written_[static_cast<std::size_t>(buffer)] = true;
  }

  const Plan& plan_;
  std::vector<std::optional<Tensor>> held_;
  std::vector<bool> written_;
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
