#include "report/tensor_names.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"

namespace ebb::report {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A loss outside modules: its logits and its inputs are named by what they are.
TEST(TensorNames, LogitsInputsAndResults) {
  const Tensor x = input(TensorType{{4, 8}, f32}, "x"), y = input(TensorType{{4}, i32}, "y"),
               w = input(TensorType{{8, 16}, f32}, "w");
  const Tensor loss = cross_entropy(matmul(x, w), y);
  const Tensor gradient = grad(loss, {w}).front();
  const Plan plan = plan_program({{x, y, w}, {loss, gradient}, {}});
  const TensorNames names = tensor_names(plan);
  ASSERT_EQ(names.buffers.size(), plan.buffers.size());
  ASSERT_EQ(names.instructions.size(), plan.instructions.size());
  for (const char* name : {"logits", "input 0", "input 2", "result 0"})
    EXPECT_TRUE(contains(names.buffers, name)) << name;
  EXPECT_TRUE(contains(names.instructions, "logits"));
  EXPECT_TRUE(contains(tensor_types(plan), "float32 (4, 16)"));
}

}  // namespace
}  // namespace ebb::report
