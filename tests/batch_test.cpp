// Reading tensors that a batch does not have.
#include <gtest/gtest.h>

#include "ebb/models/mlp.h"
#include "ebb/ops.h"
#include "ebb/optim/sgd.h"
#include "ebb/train/train_step.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Batch, WithoutTargetsIsAClearError) {
  const Batch inputs{{eval(ones({2, 3}))}};
  EXPECT_EQ(inputs.x().shape(), (Shape{2, 3}));
  expect_error([&] { inputs.y(); }, {"y(), the targets", "1 tensor", "no targets"});
  expect_error([&] { Batch{}.x(); }, {"x(), the inputs", "0 tensors"});
  expect_error([&] { inputs.at(4); }, {"tensor 4"});
}

TEST(Batch, ALossWithoutParametersIsAClearError) {
  models::MlpConfig config;
  config.inputs = 3, config.hidden = 4, config.classes = 2;
  auto model = make<models::Mlp>(device::cpu, f32, config);
  TrainStep step(model, optim::SGD{.lr = 0.1}, [](const Batch& b) { return mean(b.x()); });
  expect_error(
      [&] {
        step(Batch{{eval(ones({2, 3}))}});
      },
      {"depends on none of the model's", "trainable parameters"});
}

}  // namespace
}  // namespace ebb::test
