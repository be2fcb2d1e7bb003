// Which instructions become one launch of a resident kernel, and in which order launches run. The
// plans are made by hand; no GPU is needed.
#include <gtest/gtest.h>

#include <array>

#include "runtime/resident.h"

namespace ebb::test {
namespace {

// Instructions on buffers of their own in one array of bytes, with what the runtime knows of them.
class Steps {
 public:
  using Described = std::function<std::optional<resident::Task>(const KernelArgs&)>;

  Steps() { plan_.lanes.add({}), plan_.lanes.add({.kind = Lane::Kind::beside}); }

  ValueId value(std::int64_t elements) {
    Buffer buffer;
    buffer.place.space = arena_space;
    buffer_of_.push_back(plan_.buffers.add(std::move(buffer)));
    elements_.push_back(elements);
    return plan_.values.add({.type = {.shape = {elements}, .dtype = bf16}, .maker = {}});
  }

  // Adds an instruction in the main lane; the second input of a product is its matrix.
  InstructionId add(const std::vector<ValueId>& inputs, ValueId output, const Described& task) {
    Instruction instruction;
    for (const ValueId id : inputs) instruction.inputs.push_back(operand(id));
    instruction.outputs.push_back(operand(output));
    kernels_.push_back({.run = task ? std::function<void(const KernelArgs&)>(resident::Step{
                                          .run = [](const KernelArgs&) {},
                                          .dtype = bf16,
                                          .launch = [](auto, DType, const KernelArgs&) {},
                                          .task = task})
                                    : [](const KernelArgs&) {}});
    return plan_.instructions.add(std::move(instruction));
  }
  InstructionId product(ValueId row, ValueId matrix, ValueId out) {
    return add({row, matrix}, out, [](const KernelArgs& a) {
      return resident::Product{.rows = {.x = a.inputs[0]},
                               .matrix = a.inputs[1],
                               .out = a.outputs[0],
                               .inner = 8,
                               .columns = 8};
    });
  }
  InstructionId relu(ValueId x, ValueId out) {
    return add({x}, out, [](const KernelArgs& a) {
      return resident::Elementwise{.rows = {.x = a.inputs[0], .form = resident::Form::relu},
                                   .out = a.outputs[0]};
    });
  }
  InstructionId attention(ValueId q, ValueId out) {
    return add({q}, out, [](const KernelArgs& a) {
      return resident::Attention{.q = a.inputs[0], .out = a.outputs[0]};
    });
  }
  InstructionId other(ValueId x, ValueId out) { return add({x}, out, {}); }

  // An instruction of another lane that waits for one of the main lane.
  InstructionId beside(ValueId x, ValueId out, InstructionId awaited) {
    const InstructionId i = other(x, out);
    plan_.instructions[i].lane = LaneId{1};
    plan_.instructions[i].waits = {awaited};
    return i;
  }

  std::vector<Launched> launches() {
    std::vector<std::size_t> begins;
    std::size_t end = 0;
    for (const std::int64_t elements : elements_)
      begins.push_back(end), end += static_cast<std::size_t>(2 * elements);
    memory_.resize(end);
    std::vector<std::vector<std::byte*>> pointers;
    std::vector<bool> alone;
    for (const Instruction& instruction : plan_.instructions) {
      for (const auto* operands : {&instruction.inputs, &instruction.outputs}) {
        pointers.emplace_back();
        for (const Operand& o : *operands)
          pointers.back().push_back(memory_.data() + begins[o.value.index()]);
      }
      alone.push_back(instruction.lane.index() != 0);
    }
    std::vector<KernelArgs> args;
    for (std::size_t i = 0; i < plan_.instructions.size(); ++i) {
      KernelArgs& each = args.emplace_back();
      each.inputs = pointers[2 * i], each.outputs = pointers[2 * i + 1];
    }
    return launches_of(plan_, kernels_, args, alone);
  }

  // The number of the launch that runs an instruction.
  static std::size_t launch_of(const std::vector<Launched>& launches, InstructionId i) {
    for (std::size_t l = 0; l < launches.size(); ++l)
      for (const InstructionId each : launches[l].instructions)
        if (each == i) return l;
    ADD_FAILURE() << "instruction " << i.index() << " is never launched";
    return launches.size();
  }

 private:
  Operand operand(ValueId id) const {
    return {.value = id,
            .buffer = buffer_of_[id.index()],
            .layout = {.strides = {1}},
            .type = plan_.values[id].type};
  }

  Plan plan_;
  std::vector<BufferId> buffer_of_;
  std::vector<std::int64_t> elements_;
  std::vector<Kernel> kernels_;
  std::vector<std::byte> memory_;
};

TEST(ResidentLaunches, OneForAChainOfProducts) {
  Steps s;
  const ValueId x = s.value(8), w1 = s.value(64), w2 = s.value(64), y = s.value(8), z = s.value(8);
  s.product(x, w1, y), s.product(y, w2, z);
  const auto launches = s.launches();
  ASSERT_EQ(launches.size(), 1u);
  ASSERT_EQ(launches[0].tasks.size(), 2u);
  EXPECT_FALSE(launches[0].tasks[0].waits);
  EXPECT_TRUE(launches[0].tasks[1].waits);
}

// Matrices are read from the beginning of a launch on: one that the chain computes ends the chain.
TEST(ResidentLaunches, AMatrixIsCompleteBeforeTheLaunchThatReadsIt) {
  Steps s;
  const ValueId x = s.value(8), w1 = s.value(64), w2 = s.value(64), made = s.value(64);
  const ValueId y = s.value(8), z = s.value(8), u = s.value(8);
  const InstructionId makes = s.relu(w2, made), first = s.product(x, w1, y);
  const InstructionId reads = s.product(y, made, z);
  s.product(z, w1, u);
  const auto launches = s.launches();
  EXPECT_LT(Steps::launch_of(launches, makes), Steps::launch_of(launches, reads));
  EXPECT_LT(Steps::launch_of(launches, first), Steps::launch_of(launches, reads));
}

// An instruction of another lane that waits for one of the main lane relies on all before it.
TEST(ResidentLaunches, WhatIsAwaitedIsNotMovedBeforeTheChain) {
  for (const bool awaited : {false, true}) {
    Steps s;
    const ValueId x = s.value(8), w = s.value(64), y = s.value(8), z = s.value(8);
    const ValueId a = s.value(8), b = s.value(8), c = s.value(8);
    const InstructionId chained = s.product(x, w, y);
    s.product(y, w, z);
    const InstructionId apart = s.other(a, b);
    if (awaited) s.beside(y, c, apart);
    const auto launches = s.launches();
    EXPECT_EQ(Steps::launch_of(launches, chained) < Steps::launch_of(launches, apart), awaited);
  }
}

// All attentions count their pieces in the same place.
TEST(ResidentLaunches, AttentionsRunOneAfterAnother) {
  Steps s;
  const ValueId x = s.value(8), w = s.value(64), q1 = s.value(8), q2 = s.value(8);
  const ValueId out1 = s.value(8), out2 = s.value(8);
  s.product(x, w, q1), s.product(x, w, q2), s.attention(q1, out1), s.attention(q2, out2);
  const auto launches = s.launches();
  ASSERT_EQ(launches.size(), 1u);
  const std::vector<resident::Listed>& tasks = launches[0].tasks;
  ASSERT_EQ(tasks.size(), 4u);
  EXPECT_TRUE(tasks[2].waits && tasks[3].waits);
}

}  // namespace
}  // namespace ebb::test
