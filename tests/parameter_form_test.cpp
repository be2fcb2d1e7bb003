// Parameters in bfloat16 with companions or stochastic rounding: the meaning of their bits, and
// that every optimizer keeps them, on the CPU and on CUDA alike.
#include "ebb/parameter_form.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ebb/ebb.h"
#include "ebb/optim/by_name.h"
#include "ops/parameter_bits.h"
#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

using Kind = ParameterForm::Kind;

const ParameterForm forms[] = {{},
                               {.kind = Kind::stochastic},
                               {.kind = Kind::compensated},
                               {.kind = Kind::completed, .bits = 16},
                               {.kind = Kind::completed, .bits = 8}};

std::vector<Device> devices() {
  std::vector<Device> result{device::cpu};
  if (cuda_present()) result.push_back(device::cuda(0));
  return result;
}

TEST(ParameterForm, CompletedFloatsComeBackWhole) {
  for (std::uint64_t i = 0; i < 1u << 20; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(i * 2654435761u);
    const float value = std::bit_cast<float>(bits);
    const CompletedFloat split = CompletedFloat::of_bits(bits);
    if (value != value) {
      EXPECT_TRUE(std::isnan(std::bit_cast<float>(split.bits())));
      continue;
    }
    ASSERT_EQ(split.bits(), bits);
    const std::uint16_t nearest = BFloat16(value).bits;
    // Halfway values go away from zero, where bfloat16's own rounding goes to even.
    if ((bits & 0xffffu) != 0x8000u) {
      ASSERT_EQ(split.upper, nearest) << value;
    }
  }
}

TEST(ParameterForm, ChanceIsRightOnAverage) {
  const float low = 1.0f, value = 1.0f + 0x1p-7f * 0.25f;  // a quarter of the way to the next
  std::int64_t up = 0;
  for (std::uint32_t chance = 0; chance < 1u << 16; ++chance)
    up += static_cast<float>(round_by_chance(value, chance)) > low ? 1 : 0;
  EXPECT_EQ(up, 1 << 14);
  for (const float special : {INFINITY, -INFINITY})
    EXPECT_EQ(static_cast<float>(round_by_chance(special, 0xffff)), special);
  EXPECT_TRUE(std::isnan(static_cast<float>(round_by_chance(NAN, 0xffff))));
}

// A model of one parameter in bfloat16, whose gradient is given by the batch.
struct One : nn::Module<One> {
  Variable weight;
  explicit One(const Shape& shape)
      : weight(parameter("weight", shape, nn::Initial::constant(1.0))) {}
  Tensor forward(const Tensor& g) { return sum(cast(weight, f32) * g); }
};

struct Training {
  One model;
  TrainStep step;
  Training(Device device, DType dtype, const Shape& shape, const optim::Optimizer& optimizer,
           const ParameterForm& form)
      : model(make<One>(device, dtype, shape)),
        step(
            model, optimizer, [this](const Batch& b) { return model(b.x()); },
            [&] {
              TrainOptions options;
              options.form = form;
              return options;
            }()) {}
  std::vector<double> all() {
    std::vector<double> values = values_of(to_device(model.weight, device::cpu));
    for (const auto& [path, variable] : step.optimizer_state().all())
      for (double value : values_of(to_device(variable, device::cpu))) values.push_back(value);
    return values;
  }
};

// 1000 steps of 2^-12 each: a bfloat16 near 1 has steps of 2^-8 below and 2^-7 above.
TEST(ParameterForm, SmallStepsAddUp) {
  const Shape shape{513};
  const Tensor g = eval(ones(shape));
  for (const Device device : devices())
    for (const ParameterForm& form : forms) {
      Training run(device, bf16, shape, optim::SGD{.lr = 0x1p-12}, form);
      const Batch batch{{to_device(g, device)}};
      for (int i = 0; i < 1000; ++i) run.step(batch);
      double mean = 0.0;
      for (double value : values_of(to_device(run.model.weight, device::cpu)))
        mean += value / 513.0;
      if (form.kind == Kind::plain) {
        EXPECT_NEAR(mean, 1.0, 1e-12);
        continue;
      }
      EXPECT_NEAR(mean, 1.0 - 1000.0 * 0x1p-12, 0x1p-8) << static_cast<int>(form.kind);
    }
}

optim::Optimizer optimizers(int i) {
  switch (i) {
    case 0:
      return optim::SGD{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1};
    case 1:
      return optim::AdamW{.lr = 0.01};
    case 2:
      return optim::Lion{.lr = 0.01};
    case 3:
      return optim::Adafactor{.beta1 = 0.9};
    case 4:
      return optim::AdamW8bit{.lr = 0.01, .min_quantised_elements = 0};
    case 5:
      return optim::AdamW4bit{.lr = 0.01, .min_quantised_elements = 0};
    default:
      return optim::LOMO{.lr = 0.01};
  }
}
constexpr int optimizer_count = 7;

Tensor gradient(const Shape& shape, std::uint64_t key) {
  return eval(random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{key}));
}

// With 16 completing bits a parameter is a float32 one, and its update that of float32: the
// gradient is the same, as it does not depend on the weight.
TEST(ParameterForm, CompletedIsFloat32WithEveryOptimizer) {
  for (const Shape& shape : {Shape{700}, Shape{37, 23}})
    for (int i = 0; i < optimizer_count; ++i) {
      Training completed(device::cpu, bf16, shape, optimizers(i), forms[3]),
          whole(device::cpu, f32, shape, optimizers(i), {});
      for (std::uint64_t k = 0; k < 5; ++k) {
        const Tensor g = eval(cast(cast(gradient(shape, k), bf16), f32));
        completed.step({{g}}), whole.step({{g}});
      }
      const std::vector<double> a = values_of(completed.model.weight),
                                b = values_of(whole.model.weight);
      for (std::size_t j = 0; j < a.size(); ++j) {
        // Adafactor's step is sized by the parameter's root mean square, of which it reads the
        // upper bits.
        const double tolerance = i == 3 ? 0x1p-7 : 0x1p-8;
        ASSERT_NEAR(a[j], b[j], tolerance * std::abs(b[j])) << "optimizer " << i;
      }
    }
}

TEST(ParameterForm, DevicesAgree) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (const Shape& shape : {Shape{701}, Shape{40, 24}})
    for (int i = 0; i < optimizer_count; ++i)
      for (const ParameterForm& form : forms) {
        Training here(device::cpu, bf16, shape, optimizers(i), form),
            there(device::cuda(0), bf16, shape, optimizers(i), form);
        for (std::uint64_t k = 0; k < 3; ++k) {
          const Tensor g = gradient(shape, k);
          here.step({{g}}), there.step({{to_device(g, device::cuda(0))}});
        }
        const std::vector<double> a = values_of(here.model.weight),
                                  b = values_of(to_device(there.model.weight, device::cpu));
        // Sums and roots differ in the last bits; a weight may round the other way.
        for (std::size_t j = 0; j < a.size(); ++j)
          ASSERT_NEAR(a[j], b[j], 0x1p-7 * std::abs(a[j]) + 1e-6)
              << "optimizer " << i << ", form " << static_cast<int>(form.kind);
      }
}

// Gradients in halves of float32 parameters: as if they had been widened first.
TEST(ParameterForm, HalfGradientsOfFloat32Parameters) {
  const Shape shape{37, 19};
  for (const Device device : devices())
    for (int i = 0; i < optimizer_count; ++i)
      for (const DType half : {f16, bf16}) {
        const auto run = [&](bool as_made) {
          auto model = make<One>(device, f32, shape);
          const Tensor g = to_device(gradient(shape, 1), device);
          const Tensor narrow = cast(input(g.type(), "g", device), half);
          // One more op stands between the cast and the optimizer.
          const Tensor wide = cast(narrow, f32), given = as_made ? wide : wide * 1.0;
          EXPECT_EQ(optim::as_made(given).dtype(), as_made ? half : f32);
          optim::StateStore store;
          Graph graph;
          graph.inputs = {narrow.node()->inputs()[0]};
          graph.updates = optimizers(i).updates(model.trainable_parameters(), {given},
                                                full({}, 0.01, f64, device),
                                                full({}, 1.0, f64, device), {}, store);
          Program program(graph);
          program.run({g});
          return values_of(to_device(model.weight, device::cpu));
        };
        EXPECT_EQ(run(true), run(false)) << "optimizer " << i;
      }
}

// A gradient scale of 0: the step is not taken, whether or not updates are in place.
TEST(ParameterForm, SkippedStepsChangeNothing) {
  const Shape shape{20, 30};
  for (const Device device : devices())
    for (int i = 0; i < optimizer_count; ++i)
      for (const ParameterForm& form : forms) {
        Training run(device, bf16, shape, optimizers(i), form);
        for (std::uint64_t k = 0; k < 2; ++k) run.step({{to_device(gradient(shape, k), device)}});
        const std::vector<double> before = run.all();
        for (const bool reads_old : {false, true}) {
          Graph graph;
          const Tensor g = input({shape, f32}, "g", device);
          graph.inputs = {g};
          graph.updates = run.step.optimizer().updates(
              run.model.trainable_parameters(), {cast(g, bf16)}, full({}, 0.01, f64, device),
              full({}, 3.0, f64, device), full({}, 0.0, f32, device), run.step.optimizer_state());
          if (reads_old) graph.outputs.push_back(sum(run.model.weight));
          Program program(graph);
          program.run({to_device(gradient(shape, 9), device)});
          EXPECT_EQ(run.all(), before) << "optimizer " << i;
        }
      }
}

TEST(ParameterForm, Errors) {
  auto model = make<One>(device::cpu, f32, Shape{4});
  optim::StateStore store;
  const auto update = [&](const Variable& p, const ParameterForm& form) {
    optim::UpdateInputs in;
    in.parameter = {"weight", p};
    in.gradient = zeros(p.shape(), p.dtype());
    in.rate = zeros({}, f64);
    in.step = ones({}, f64);
    in.gradient_scale = ones({});
    in.form = form;
    return make_rule(optim::SGD{})->update(in, {});
  };
  expect_error([&] { update(model.weight, {.kind = Kind::stochastic}); }, {"[sgd]", "bfloat16"});
  const Variable half(zeros({4}, bf16));
  expect_error([&] { update(half, {.kind = Kind::compensated}); }, {"[sgd]", "companion"});
}

}  // namespace
}  // namespace ebb::test
