// Variants of ops: which ones a graph has, and how one is chosen. No device is needed.
#include "passes/variants.h"

#include <gtest/gtest.h>

#include "ebb/ebb.h"
#include "ebb/grad.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "passes/passes.h"
#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

const std::string loss_op = "linear_cross_entropy_joint";

Graph step(DType dtype) {
  const Tensor x = input({{8, 4}, dtype}, "x"), targets = input({{8}, i64}, "targets"),
               weight = input({{16, 4}, dtype}, "weight");
  const Tensor loss = linear_cross_entropy(tanh(x), weight, targets);
  std::vector<Tensor> outputs = grad(loss, {x, weight});
  outputs.push_back(loss);
  return {{x, targets, weight}, outputs, {}};
}
Graph on_gpu(const Graph& graph) {
  return OtherDevice(device::cuda(0), OtherDevice::Constants::inputs)(graph);
}

int walks(const Graph& graph) {
  for (const auto& node : topological_order(graph))
    if (&node->op() == &linear_cross_entropy_joint_op())
      return node->attributes().as<LinearCrossEntropyJointAttributes>().walks;
  return 0;
}

TEST(Variants, AreThoseOfTheDeviceAndTheDType) {
  EXPECT_TRUE(variants_to_choose_from(join_loss(step(f32))).empty());
  EXPECT_EQ(walks(join_loss(step(f32))), 1);
  EXPECT_EQ(walks(join_loss(step(bf16))), 2);
  const Graph gpu = join_loss(on_gpu(step(bf16)));
  EXPECT_EQ(walks(gpu), 1) << "the fastest";
  const std::map<std::string, std::vector<std::string>> expected{
      {loss_op, {"one_walk", "two_walks"}}};
  EXPECT_EQ(variants_to_choose_from(gpu), expected);
  EXPECT_EQ(walks(with_variants(gpu, {{loss_op, "two_walks"}})), 2);
  EXPECT_EQ(walks(with_variants(with_variants(gpu, {{loss_op, "two_walks"}}), {})), 2);
}

TEST(Variants, ThatAreNotThere) {
  const Graph graph = step(f32);
  const auto plan = [&](VariantChoice choice) {
    return [&graph, choice] { plan_program(graph, {.variants = choice}); };
  };
  expect_error(plan({{"matmul", "one_walk"}}), {"\"matmul\"", loss_op});
  expect_error(plan({{loss_op, "three_walks"}}), {"\"three_walks\"", loss_op, "cpu", "one_walk"});
  expect_error(plan({{loss_op, "two_walks"}}), {"\"two_walks\"", "cpu", "one_walk"});
  EXPECT_NO_THROW(plan({{loss_op, "one_walk"}})());
}

TEST(Variants, ABudgetThatCannotBeKeptIsAResult) {
  const Graph graph = step(f32);
  CompileOptions options;
  options.plan.budget = 4096_B;
  const PlanResult none = try_plan_program(graph, options);
  ASSERT_FALSE(none.plan);
  EXPECT_EQ(none.least->bytes, least_budget(graph, options));
  options.plan.budget = none.least->bytes;
  const PlanResult kept = try_plan_program(graph, options);
  ASSERT_TRUE(kept.plan);
  EXPECT_LE(kept.plan->peak, none.least->bytes);
  options.plan.budget = 4096_B;
  EXPECT_THROW(plan_program(graph, options), BudgetError);
}

}  // namespace
}  // namespace ebb::test
