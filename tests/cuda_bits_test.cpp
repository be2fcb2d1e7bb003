// A budget changes no bit of a training step on a GPU, whichever form of the loss, groups and
// recomputation it leads to.
#include <gtest/gtest.h>

#include "ebb/data/loader.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/multilevel.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

const Device device = device::cuda(0);

struct LossSize {
  std::int64_t rows, classes, features;
};

std::vector<std::vector<double>> loss_and_gradients(const LossSize& s, DType dtype, int walks,
                                                    const LinearCrossEntropyOptions& options) {
  const Tensor x = random_normal({s.rows, s.features}, 0.0, 1.0, dtype, device, RandomKey{1});
  const Tensor w = random_normal({s.classes, s.features}, 0.0, 0.3, dtype, device, RandomKey{2});
  const Tensor targets =
      to_device(eval(cast(random_uniform({s.rows}, 0.0, static_cast<double>(s.classes), f32,
                                         device::cpu, RandomKey{3}),
                          i64)),
                device);
  const Tensor px = eval(x), pw = eval(w);
  const Tensor loss = linear_cross_entropy(px, pw, targets, options);
  std::vector<Tensor> outputs = grad(loss, {px, pw});
  outputs.push_back(loss);
  CompileOptions compile;
  compile.variants = {{"linear_cross_entropy_joint", walks == 1 ? "one_walk" : "two_walks"}};
  Program program({{}, outputs, {}}, compile);
  program.run();
  std::vector<std::vector<double>> results;
  for (int i = 0; i < 3; ++i) results.push_back(values_of(program.output(i)));
  return results;
}

// One block and several, one tile and several, rows of whole packs and not, rows too long to share.
TEST(CudaLoss, FormsAgreeToTheBit) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (const LossSize& s :
       {LossSize{5, 7, 4}, LossSize{300, 1000, 64}, LossSize{513, 5003, 48},
        LossSize{4096, 50257, 64}, LossSize{1024, 128256, 64}, LossSize{64, 2049, 8}})
    for (DType dtype : {bf16, f16, f32, f64})
      for (std::int64_t chunk : {0, 100}) {
        const LinearCrossEntropyOptions options{
            .ignore_index = 3, .label_smoothing = chunk == 0 ? 0.0 : 0.1, .chunk = chunk};
        EXPECT_EQ(loss_and_gradients(s, dtype, 1, options),
                  loss_and_gradients(s, dtype, 2, options))
            << s.rows << " x " << s.classes << " x " << s.features << " " << name(dtype);
      }
}

struct Training {
  std::vector<double> losses;
  Bytes peak, least;
};

Training train(const std::string& name, Precision precision, std::optional<Bytes> budget) {
  workloads::Options options = small_workload(name);
  options.device = device;
  options.dtype = parameter_dtype(precision);
  const auto task = workloads::make_workload(options);
  TrainOptions train;
  train.precision = precision;
  train.compile.plan.budget = budget;
  train.compile.seed = 5;
  TrainStep step(
      task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, train);
  data::Loader loader(task->train, {.batch = task->batch_size, .seed = 3});
  Training run;
  const std::vector<TensorType> types = loader.types().front();
  run.peak = step.plan(types).peak;
  if (!budget) run.least = least_budget(step.trace(types), step.options().compile);
  for (int i = 0; i < 12; ++i) run.losses.push_back(step(loader.next()).loss);
  return run;
}

class CudaBits : public testing::TestWithParam<std::string> {};

TEST_P(CudaBits, BudgetsChangeNone) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  const std::string& name = GetParam();
  for (Precision precision : {Precision::fp32, Precision::mixed_fp16, Precision::split_bf16}) {
    const Training free = train(name, precision, {});
    EXPECT_LE(free.least, free.peak);  // the same where there is nothing to recompute
    for (const double share : {0.0, 0.5}) {
      const Bytes budget =
          free.least + Bytes{static_cast<std::int64_t>(
                           share * static_cast<double>((free.peak - free.least).count))};
      const Training kept = train(name, precision, budget);
      EXPECT_LE(kept.peak, budget);
      EXPECT_EQ(kept.losses, free.losses)
          << ebb::name(precision) << " in " << to_string(budget) << " of " << to_string(free.peak);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workloads, CudaBits, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });

// The losses of all levels, with one budget for each of them.
Training train_levels(const std::string& name, mlo::Method method, Precision precision,
                      std::optional<Bytes> budget) {
  workloads::MultilevelOptions options;
  options.common.name = name, options.common.device = device;
  options.common.batch = 6, options.classifier = "resnet32", options.meta = 100;
  for (const std::string& level : workloads::level_names(name))
    options.levels[level].precision = precision, options.levels[level].budget = budget;
  options.levels[workloads::level_names(name).front()].method = method;
  const auto task = workloads::make_multilevel(options);
  mlo::Engine engine(task->problems(), task->dependencies(), {.train_iters = 6, .seed = 5});
  Training run;
  run.peak = engine.plan().peak;
  if (!budget) run.least = engine.least_budget();
  for (int i = 0; i < 6; ++i) {
    engine.train_step();
    for (const mlo::Problem* problem : task->problems())
      run.losses.push_back(problem->last().at("loss"));
  }
  return run;
}

class CudaLevelBits : public testing::TestWithParam<std::string> {};

TEST_P(CudaLevelBits, BudgetsChangeNone) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (mlo::Method method : {mlo::Method::darts, mlo::Method::cg})
    for (Precision precision : {Precision::fp32, Precision::mixed_fp16}) {
      const Training free = train_levels(GetParam(), method, precision, {});
      EXPECT_LE(free.least, free.peak);
      const Training kept = train_levels(GetParam(), method, precision, free.least);
      EXPECT_LE(kept.peak, free.least);
      EXPECT_EQ(kept.losses, free.losses) << mlo::name(method) << " " << ebb::name(precision);
    }
}

INSTANTIATE_TEST_SUITE_P(Workloads, CudaLevelBits, testing::ValuesIn(workloads::multilevel_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace ebb::test
