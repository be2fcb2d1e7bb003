// After the first step nothing allocates: every operator new of the process, ours and the
// libraries', is counted while steps run. (tests/support/allocation_count.cpp replaces operator new
// for the whole test binary.)
#include <gtest/gtest.h>

#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/resnet.h"
#include "ebb/storage.h"
#include "ebb/train/train_step.h"
#include "support/allocation_count.h"

namespace ebb::test {
namespace {

// oneDNN makes a map of the arguments for every call and frees it when the call ends.
enum class Library { silent, makes_argument_maps };

void expect_steady(TrainStep& step, const Batch& batch, Library library = Library::silent) {
  for (int i = 0; i < 2; ++i) step(batch);
  const Bytes before = live_bytes();
  const std::int64_t allocations = allocation_count(), live = live_allocations();
  for (int i = 0; i < 3; ++i) step(batch);
  if (library == Library::silent) {
    EXPECT_EQ(allocation_count() - allocations, 0);
  }
  EXPECT_EQ(live_allocations(), live);
  EXPECT_EQ(live_bytes(), before);
}

TEST(SteadyState, ATransformerStepAllocatesNothing) {
  auto model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{
          .vocabulary = 101, .context = 32, .layers = 2, .heads = 2, .width = 32, .dropout = 0.1});
  TrainStep step(model, optim::AdamW{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); },
                 {.schedule = optim::cosine(100), .clip_norm = 1.0, .compile = {}});
  expect_steady(step, {{eval(zeros({4, 32}, i64)), eval(ones({4, 32}, i64))}});
}

TEST(SteadyState, AHalfPrecisionStepAllocatesNothing) {
  auto model = make<models::Gpt2>(
      device::cpu, bf16,
      models::Gpt2Config{.vocabulary = 101, .context = 16, .layers = 1, .heads = 2, .width = 32});
  TrainStep step(model, optim::AdamW{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); });
  expect_steady(step, {{eval(zeros({4, 16}, i64)), eval(ones({4, 16}, i64))}});
}

TEST(SteadyState, AConvolutionalStepKeepsNothing) {
  auto model = make<models::ResNet>(
      device::cpu, f32,
      models::ResNetConfig{models::ResNetConfig::Block::bottleneck, {1, 1}, {8, 16}, 3, 10});
  TrainStep step(model, optim::SGD{.lr = 0.1, .momentum = 0.9},
                 [&](const Batch& b) { return cross_entropy(model(b.x()), b.y()); });
  expect_steady(step, {{eval(ones({4, 3, 16, 16})), eval(zeros({4}, i64))}},
                Library::makes_argument_maps);
}

}  // namespace
}  // namespace ebb::test
