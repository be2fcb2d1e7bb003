// The forms of a fused loss on a GPU, which a plan chooses among. Planning needs no device.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

constexpr std::int64_t rows = 8192, features = 64, classes = 50264;

// The loss of one layer and its gradients, as for a GPU.
Graph step() {
  const Tensor x = input({{rows, features}, bf16}, "x"), targets = input({{rows}, i64}, "targets"),
               weight = input({{classes, features}, bf16}, "weight");
  const Tensor loss = linear_cross_entropy(tanh(x), weight, targets);
  std::vector<Tensor> outputs = grad(loss, {x, weight});
  outputs.push_back(loss);
  return OtherDevice(device::cuda(0),
                     OtherDevice::Constants::inputs)(Graph{{x, targets, weight}, outputs, {}});
}

LinearCrossEntropyJointAttributes form_of(const Plan& plan) {
  for (const Instruction& instruction : plan.instructions)
    if (instruction.op == &linear_cross_entropy_joint_op())
      return instruction.attributes.as<LinearCrossEntropyJointAttributes>();
  ADD_FAILURE() << "no joint loss";
  return {};
}

CompileOptions options(std::optional<Bytes> budget, std::optional<int> walks = {}) {
  CompileOptions result;
  result.plan.budget = budget;
  if (walks)
    result.variants = {{"linear_cross_entropy_joint", walks == 1 ? "one_walk" : "two_walks"}};
  return result;
}

class LossForms : public testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  }
};

TEST_F(LossForms, AreWhatIsAskedFor) {
  const Graph graph = step();
  for (int walks : {1, 2}) EXPECT_EQ(form_of(plan_program(graph, options({}, walks))).walks, walks);
}

TEST_F(LossForms, TheFastestThatKeepsTheBudgetIsTaken) {
  const Graph graph = step();
  const auto peak = [&](int walks) { return plan_program(graph, options({}, walks)).peak; };
  const Bytes one = peak(1), two = peak(2);
  EXPECT_GT(one, two);
  EXPECT_EQ(form_of(plan_program(graph, options({}))).walks, 1);
  EXPECT_EQ(form_of(plan_program(graph, options(one))).walks, 1);
  const Plan less = plan_program(graph, options(one - 1_MiB));
  EXPECT_EQ(form_of(less).walks, 2);
  EXPECT_LE(less.peak, one - 1_MiB);
}

// A budget may change when logits are computed, but nothing that decides the order of sums.
TEST_F(LossForms, CutTheLogitsAlike) {
  const Graph graph = step();
  const LinearCrossEntropyJointAttributes one = form_of(plan_program(graph, options({}, 1))),
                                          two = form_of(plan_program(graph, options({}, 2)));
  EXPECT_EQ(one.backward, two.backward);
}

TEST_F(LossForms, TheLeastBudgetIsThatOfTheLeanestForm) {
  const Graph graph = step();
  const Bytes least = least_budget(graph, options({}));
  EXPECT_EQ(least, least_budget(graph, options({}, 2)));
  EXPECT_LE(plan_program(graph, options(least)).peak, least);
  try {
    plan_program(graph, options(least - 1_MiB));
    FAIL() << "a budget below the least was kept";
  } catch (const BudgetError& error) {
    EXPECT_EQ(error.least, least);
  }
}

}  // namespace
}  // namespace ebb::test
