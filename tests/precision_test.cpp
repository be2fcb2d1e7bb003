// The precision pass: which ops run in half precision, what is rounded and when, and training in
// every precision compared with float32.
#include "ebb/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "ebb/ebb.h"
#include "ebb/workloads/workload.h"
#include "ops/pointwise/pointwise.h"
#include "support/op_check.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

// The dtypes of an op's nodes in the graph of `values`.
std::set<DType> dtypes_of(std::string_view op, const std::vector<Tensor>& values) {
  std::set<DType> result;
  for (const auto& node : topological_order({.inputs = {}, .outputs = values, .updates = {}}))
    if (node->op().name() == op) result.insert(node->outputs()[0].dtype);
  return result;
}

std::int64_t count_of(std::string_view op, const std::vector<Tensor>& values) {
  std::int64_t count = 0;
  for (const auto& node : topological_order({.inputs = {}, .outputs = values, .updates = {}}))
    count += node->op().name() == op ? 1 : 0;
  return count;
}

using Halves = std::set<DType>;

TEST(Precision, ProductsAreHalvesAndReductionsAreNot) {
  const Variable w(random_normal({8, 8}, 0.0, 1.0)), g(ones({8})), b(zeros({8}));
  const Tensor x = input({{4, 8}, f32}, "x");
  const Tensor h = layer_norm(gelu(matmul(x, w) + b), g, b);
  const Tensor loss = mean(square(matmul(h, w)));
  for (const DType half : {f16, bf16}) {
    const std::vector<Tensor> values = HalfPrecision(half)({loss});
    EXPECT_EQ(values[0].dtype(), f32);
    EXPECT_EQ(dtypes_of("matmul", values), Halves{half});
    EXPECT_EQ(dtypes_of("gelu", values), Halves{half});
    EXPECT_EQ(dtypes_of("layer_norm", values), Halves{half});
    EXPECT_EQ(dtypes_of("square", values), Halves{f32});
    EXPECT_EQ(dtypes_of("sum", values), Halves{f32});
  }
}

TEST(Precision, WeightsAreCastOnceHoweverOftenTheyAreRead) {
  const Variable w(random_normal({8, 8}, 0.0, 1.0));
  const Tensor x = input({{4, 8}, f32}, "x");
  HalfPrecision half(bf16);
  const Tensor twice = matmul(matmul(x, w), permute(w, {1, 0}));
  const std::vector<Tensor> values = half({twice, matmul(x, w)});
  EXPECT_EQ(count_of("cast", values), 2);                     // of x, and of w
  const std::vector<Tensor> more = half({matmul(twice, w)});  // in a second graph
  EXPECT_EQ(count_of("cast", {values[0], values[1], more[0]}), 2);
}

TEST(Precision, ConstantsKeepTheirDigits) {
  const Tensor x = eval(random_uniform({256}, 0.5, 1.5, f32, device::cpu, RandomKey{1}));
  const Variable one(ones({256, 1}));
  // In halves, since it comes from a product; 0.1 is not: the product is rounded once.
  const Tensor h = matmul(reshape(x, {256, 1}), ones({1, 1}));
  const std::vector<Tensor> y = HalfPrecision(bf16)({h * 0.1});
  ASSERT_EQ(y[0].dtype(), bf16);
  const std::vector<double> from = values_of(x), to = values_of(y[0]);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float in = BFloat16(static_cast<float>(from[i]));
    EXPECT_EQ(static_cast<float>(to[i]), static_cast<float>(BFloat16(in * 0.1f)));
  }
}

TEST(Precision, LossesAreFloat32) {
  const Tensor logits = input({{6, 10}, bf16}, "x"), x = input({{6, 4}, bf16}, "h");
  const Tensor targets = input({{6}, i64}, "y");
  EXPECT_EQ(cross_entropy(logits, targets).dtype(), f32);
  EXPECT_EQ(linear_cross_entropy(x, ones({10, 4}, bf16), targets).dtype(), f32);
}

TEST(Precision, NamesAndErrors) {
  for (const char* text : {"fp32", "fp16", "bf16", "pure-bf16", "split-bf16", "fp8"})
    EXPECT_EQ(name(precision_by_name(text)), text);
  expect_error([] { (void)precision_by_name("fp4"); }, {"fp32, fp16, bf16", "fp8", "\"fp4\""});
  expect_error([] { HalfPrecision pass(f32); }, {"float16 or bfloat16", "float32"});
  auto model = make<models::Mlp>(device::cpu, f32, models::MlpConfig{});
  const auto loss = [](const Batch& b) { return mean(b.x()); };
  TrainOptions options;
  options.precision = Precision::split_bf16;
  expect_error([&] { TrainStep(model, optim::SGD{}, loss, options); },
               {"split-bf16", "bfloat16", "weight", "float32"});
  options.precision = Precision::mixed_fp16;
  options.clip_norm = 1.0, options.clip_by = ClipBy::last_norm;
  expect_error([&] { TrainStep(model, optim::SGD{}, loss, options); },
               {"last step's norm", "fp16"});
  options.precision = Precision::fp32, options.clip_by = ClipBy::two_backwards;
  options.accumulate = 2;
  expect_error([&] { TrainStep(model, optim::SGD{}, loss, options); }, {"accumulation"});
}

// --- Training

workloads::Options small(const std::string& name, Precision precision) {
  workloads::Options o;
  o.name = name;
  o.dtype = parameter_dtype(precision);
  o.seed = 3;
  if (name == "resnet") {
    o.depth = 32, o.batch = 32;
  } else {
    o.layers = 2, o.heads = 2, o.width = 32, o.vocabulary = 32, o.sequence = 16;
    o.batch = 16, o.dropout = 0.0;
    if (name != "gpt2") o.hidden = 64;
  }
  return o;
}

// The mean loss of the last quarter of some steps.
double trained(const workloads::Options& sizes, const optim::Optimizer& optimizer,
               const TrainOptions& options, int steps) {
  const auto task = workloads::make_workload(sizes);
  data::Loader loader(task->train, {.batch = task->batch_size, .seed = 5});
  TrainStep step(
      task->model(), optimizer, [&](const Batch& b) { return task->loss(b); }, options);
  double sum = 0.0;
  for (int i = 0; i < steps; ++i) {
    const StepResult result = step(loader.next());
    if (i >= steps - steps / 4) sum += result.loss;
  }
  check_plan(step.plan(loader.types().front()));
  return sum / (steps / 4);
}

TEST(Precision, LossesOfAllPrecisionsAgree) {
  const struct {
    const char* name;
    optim::Optimizer optimizer;
    int steps;
  } tasks[] = {{"lm", optim::AdamW{.lr = 3e-3}, 60},
               {"gpt2", optim::AdamW{.lr = 3e-3}, 60},
               {"resnet", optim::SGD{.lr = 0.002, .momentum = 0.9}, 16}};
  for (const auto& [name, optimizer, steps] : tasks) {
    const double reference = trained(small(name, Precision::fp32), optimizer, {}, steps);
    for (const Precision precision : {Precision::mixed_fp16, Precision::mixed_bf16,
                                      Precision::pure_bf16, Precision::split_bf16}) {
      TrainOptions options;
      options.precision = precision;
      const double loss = trained(small(name, precision), optimizer, options, steps);
      EXPECT_NEAR(loss, reference, 0.01 * reference) << name << " in " << ebb::name(precision);
    }
  }
}

TEST(Precision, EightBitAdamAndEightMasterBitsTrainAsWell) {
  const double reference = trained(small("lm", Precision::fp32), optim::AdamW{.lr = 3e-3}, {}, 80);
  TrainOptions options;
  options.precision = Precision::split_bf16;
  options.form = {.kind = ParameterForm::Kind::completed, .bits = 8};
  const double loss =
      trained(small("lm", Precision::split_bf16),
              optim::AdamW8bit{.lr = 3e-3, .min_quantised_elements = 0, .quantise_tables = true},
              options, 80);
  EXPECT_NEAR(loss, reference, 0.01 * reference);
}

// Whether a value lies halfway between two bfloat16, of which the one nearer to 0 is even: a cast
// takes that one, a split weight the other.
bool rounds_apart(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x1ffffu) == 0x8000u;
}

// Both models start from the same values, those that bfloat16 has.
TEST(Precision, SplitWeightsEqualFloat32Masters) {
  const models::Gpt2Config config{
      .vocabulary = 61, .context = 16, .layers = 1, .heads = 2, .width = 16, .dropout = 0.0};
  auto split = make<models::Gpt2>(device::cpu, bf16, config);
  auto master = make<models::Gpt2>(device::cpu, f32, config);
  const auto from = split.parameters(), to = master.parameters();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i].variable.materialise();
    to[i].variable.materialise();
    const std::vector<float> values = cast(from[i].variable, f32).to_vector<float>();
    to[i].variable.node()->storage()->write(std::as_bytes(std::span(values)));
  }
  const auto steps_of = [](models::Gpt2& model, Precision precision) {
    TrainOptions options;
    options.precision = precision;
    return TrainStep(
        model, optim::AdamW{.lr = 1e-3}, [&](const Batch& b) { return model.loss(b.x(), b.y()); },
        options);
  };
  TrainStep split_step = steps_of(split, Precision::split_bf16),
            master_step = steps_of(master, Precision::mixed_bf16);
  const auto parted = [&] {
    return std::any_of(to.begin(), to.end(), [](const auto& parameter) {
      const std::vector<float> values = parameter.variable.template to_vector<float>();
      return std::any_of(values.begin(), values.end(), rounds_apart);
    });
  };
  // One value in 131,072 is rounded differently; after that the runs cannot be equal.
  std::uint64_t steps = 0;
  while (steps < 20 && !parted()) {
    const auto ids = [&](std::uint64_t key) {
      return eval(cast(random_uniform({4, 16}, 0.0, 61.0, f32, device::cpu, RandomKey{key}), i64));
    };
    const Batch batch{{ids(2 * steps), ids(2 * steps + 1)}};
    ASSERT_EQ(split_step(batch).loss, master_step(batch).loss) << "step " << steps;
    ++steps;
  }
  EXPECT_GE(steps, 3u);
}

// --- Loss scaling

// One weight vector; the gradient is the batch's mean, so that a batch can overflow it.
struct Scaled {
  struct Model : nn::Module<Model> {
    Variable weight = parameter("weight", {4, 1}, nn::Initial::constant(0.5));
    Tensor forward(const Tensor& x) { return mean(matmul(x, weight)); }
  };
  Model model = make<Model>(device::cpu, f32);
  TrainStep step;

  explicit Scaled(TrainOptions options, const optim::Optimizer& optimizer = optim::Adam{.lr = 0.1})
      : step(
            model, optimizer, [this](const Batch& b) { return model(b.x()); },
            [&] { return options.precision = Precision::mixed_fp16, options; }()) {}

  StepResult run(float value) {
    const std::vector<float> x(8, value);
    return step({{Tensor::from(x, {2, 4})}});
  }
  std::vector<double> state() {
    std::vector<double> all = values_of(model.weight);
    for (const auto& [path, variable] : step.optimizer_state().all())
      if (path.find("loss_scale") == std::string::npos)
        for (double value : values_of(variable)) all.push_back(value);
    return all;
  }
};

TEST(LossScale, AnOverflowSkipsThatStepAndHalvesTheScale) {
  TrainOptions options;
  options.loss_scale.initial = 1024.0;
  Scaled with(options), without(options);
  for (int i = 0; i < 6; ++i) {
    const float value = 0.25f * static_cast<float>(i + 1);
    EXPECT_FALSE(with.run(value).skipped);
    without.run(value);
    if (i != 2) continue;
    const std::vector<double> before = with.state();
    const StepResult bad = with.run(60000.0f);  // times 1024, beyond float16's 65504
    EXPECT_TRUE(bad.skipped);
    EXPECT_EQ(bad.loss_scale, 1024.0);
    EXPECT_EQ(with.state(), before);
    EXPECT_EQ(with.run(0.0f).loss_scale, 512.0);
    without.run(0.0f);
  }
  // Scales are powers of two and divided out exactly; Adam has not counted the step.
  EXPECT_EQ(with.state(), without.state());
  EXPECT_EQ(with.step.optimizer_state().all().at("loss_scale.steps_skipped").item(), 1.0);
  EXPECT_EQ(with.step.optimizer_state().all().at("loss_scale.steps_taken").item(), 7.0);
}

TEST(LossScale, GrowsAfterStepsWithoutOverflow) {
  TrainOptions options;
  options.loss_scale = {.initial = 8.0, .growth = 4.0, .backoff = 0.25, .interval = 3};
  Scaled run(options);
  std::vector<double> scales;
  for (int i = 0; i < 7; ++i) scales.push_back(run.run(1.0f).loss_scale);
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 8, 32, 32, 32, 128}));
  run.run(60000.0f);
  EXPECT_EQ(run.run(1.0f).loss_scale, 32.0);
  options.loss_scale.growth = 0.5;
  expect_error([&] { Scaled(options).run(1.0f); }, {"growth = 0.5"});
}

TEST(LossScale, WorksWithClippingAndAccumulation) {
  for (const double clip : {0.0, 0.5}) {
    TrainOptions options;
    if (clip > 0.0) options.clip_norm = clip;
    Scaled once(options, optim::SGD{.lr = 1.0});
    options.accumulate = 2;
    Scaled twice(options, optim::SGD{.lr = 1.0});
    const StepResult a = once.run(0.75f), b = twice.run(0.75f);
    EXPECT_EQ(values_of(once.model.weight), values_of(twice.model.weight));
    if (clip > 0.0) {
      EXPECT_NEAR(a.gradient_norm, 1.5, 1e-3);  // the gradient of each of four weights is 0.75
      EXPECT_EQ(a.gradient_norm, b.gradient_norm);
      EXPECT_NEAR(values_of(once.model.weight)[0], 0.5 - 0.25, 1e-3);
    }
    EXPECT_TRUE(twice.run(60000.0f).skipped);
    EXPECT_EQ(values_of(once.model.weight), values_of(twice.model.weight));
  }
}

TEST(LossScale, NoStepOfItAllocates) {
  TrainOptions options;
  Scaled run(options);
  const Batch batch{{Tensor::from(std::vector<float>(8, 1.0f), {2, 4})}};
  run.step(batch);
  const std::int64_t nodes = live_nodes();
  for (int i = 0; i < 5; ++i) run.step(batch);
  EXPECT_EQ(live_nodes(), nodes);
}

}  // namespace
}  // namespace ebb::test
