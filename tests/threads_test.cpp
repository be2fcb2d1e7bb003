// The number of threads changes no bit of training, for every model and precision. Models with
// convolutions are left out: oneDNN sums a weight's gradient by threads.
#include "ebb/threads.h"

#include <gtest/gtest.h>

#include "ebb/data/loader.h"
#include "ebb/train/train_step.h"
#include "support/sanitizers.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

std::vector<double> losses(const std::string& name, Precision precision, int count) {
  set_threads(count);
  workloads::Options sizes = small_workload(name);
  sizes.dtype = parameter_dtype(precision);
  const auto task = workloads::make_workload(sizes);
  TrainOptions options;
  options.precision = precision;
  TrainStep step(
      task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, options);
  data::Loader loader(task->train, {.batch = task->batch_size, .seed = 3});
  std::vector<double> result;
  for (int i = 0; i < 5; ++i) result.push_back(step(loader.next()).loss);
  return result;
}

class Threads : public testing::TestWithParam<std::string> {};

TEST_P(Threads, ChangeNoBit) {
  const int before = threads();
  for (Precision precision : {Precision::fp32, Precision::mixed_fp16, Precision::mixed_bf16,
                              Precision::pure_bf16, Precision::split_bf16}) {
    if (sanitized && precision != Precision::mixed_fp16) continue;
    const std::vector<double> alone = losses(GetParam(), precision, 1);
    for (int count : {2, 3}) EXPECT_EQ(losses(GetParam(), precision, count), alone);
  }
  set_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Workloads, Threads, testing::Values("mlp", "lm", "gpt2", "llama", "bert"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace ebb::test
