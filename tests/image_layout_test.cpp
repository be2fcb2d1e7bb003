// The layout of channels only affects speed: the parameters and files are the same, and so is
// training up to rounding.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/models/resnet.h"
#include "support/command_line.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

models::ResNetConfig small(ImageLayout layout) {
  return {models::ResNetConfig::Block::bottleneck, {1, 1}, {4, 8}, 3, 5, layout};
}

Batch images(std::uint64_t seed) {
  return {{eval(random_normal({6, 3, 8, 8}, 0.0, 1.0, f32, device::cpu, RandomKey{seed})),
           Tensor::from(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0}, {6})}};
}

struct SmallRun {
  models::ResNet model;
  TrainStep step;

  explicit SmallRun(ImageLayout layout, DType dtype = f64)
      : model(make<models::ResNet>(device::cpu, dtype, small(layout))),
        step(model, optim::SGD{.lr = 0.05, .momentum = 0.9},
             [this](const Batch& b) {
               return cross_entropy(model(cast(b.x(), model.dtype())), b.y());
             },
             {.schedule = optim::constant(), .clip_norm = {}, .compile = {}}) {}

  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i)
      losses.push_back(step(images(static_cast<std::uint64_t>(i))).loss);
    return losses;
  }
};

TEST(ImageLayout, ModelsTrainAlike) {
  // Rounding grows with each step as the weights drift apart.
  for (const auto& [dtype, tolerance] : {std::pair{f64, 1e-9}, {f32, 1e-3}}) {
    SmallRun first(ImageLayout::channels_first, dtype), last(ImageLayout::channels_last, dtype);
    const std::vector<double> a = first.train(4), b = last.train(4);
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i], b[i], tolerance) << "step " << i << " in " << name(dtype);
    const auto of_first = first.model.parameters(), of_last = last.model.parameters();
    ASSERT_EQ(of_first.size(), of_last.size());
    for (std::size_t i = 0; i < of_first.size(); ++i) {
      EXPECT_EQ(of_first[i].path, of_last[i].path);
      EXPECT_EQ(of_first[i].variable.shape(), of_last[i].variable.shape()) << of_first[i].path;
    }
  }
}

TEST(ImageLayout, CheckpointsServeBoth) {
  const TemporaryFolder folder;
  SmallRun first(ImageLayout::channels_first);
  first.train(2);
  io::save_checkpoint(folder / "run.safetensors", first.model, first.step);
  SmallRun last(ImageLayout::channels_last);
  io::load_checkpoint(folder / "run.safetensors", last.model, last.step);
  const std::vector<double> a = first.train(2), b = last.train(2);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-9) << "step " << i;
}

// A hypergradient differentiates the gradients of every op of the model.
TEST(ImageLayout, SecondDerivativesOfModelsAgree) {
  const auto second = [](ImageLayout layout) {
    auto model = make<models::ResNet>(device::cpu, f64, small(layout));
    const nn::ForwardScope scope(nn::Mode::train);
    const Batch b = images(3);
    std::vector<Tensor> weights;
    for (const auto& each : model.parameters()) weights.push_back(each.variable);
    const Tensor loss = cross_entropy(model(cast(b.x(), f64)), b.y());
    Tensor total;
    for (const Tensor& g : grad(loss, weights)) {
      const Tensor part = sum(square(g));
      total = total ? total + part : part;
    }
    std::vector<double> norms;
    for (const Tensor& each : eval(grad(total, weights)))
      norms.push_back(values_of(eval(sum_squares(each)))[0]);
    return norms;
  };
  const std::vector<double> first = second(ImageLayout::channels_first),
                            last = second(ImageLayout::channels_last);
  ASSERT_EQ(first.size(), last.size());
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_NEAR(first[i], last[i], 1e-8 * (1.0 + first[i])) << "parameter " << i;
}

TEST(ImageLayout, CommandLine) {
  const auto losses = [](const std::string& arguments) {
    const Outcome outcome = run(arguments + " --json 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << arguments << outcome.output;
    const std::size_t at = outcome.output.rfind('{', outcome.output.find("\"workload\""));
    return nlohmann::json::parse(outcome.output.substr(at))["losses"].get<std::vector<double>>();
  };
  const std::string resnet =
                        "train --workload resnet --depth 18 --batch 2 --steps 3 --eval-batches 0",
                    reweight =
                        "train --workload reweight --classifier resnet32 --method darts --batch 2 "
                        "--steps 3 --eval-batches 0";
  for (const std::string& workload : {resnet, reweight}) {
    const std::vector<double> first = losses(workload + " --layout channels-first"),
                              last = losses(workload + " --layout channels-last");
    EXPECT_EQ(losses(workload), first);  // the default on a CPU
    ASSERT_EQ(first.size(), last.size());
    EXPECT_NE(first, last);  // other kernels round otherwise
    for (std::size_t i = 0; i < first.size(); ++i)
      EXPECT_NEAR(first[i], last[i], 0.02 * (1.0 + first[i])) << workload << ", step " << i;
  }
  expect_usage_error(resnet + " --layout nhwc", "nhwc");
}

}  // namespace
}  // namespace ebb::test
