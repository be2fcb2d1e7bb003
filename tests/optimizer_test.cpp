// The state of optimizers, its size, and whether they train.
#include <gtest/gtest.h>

#include <cmath>

#include "ebb/ebb.h"
#include "ebb/storage.h"
#include "support/allocation_count.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using optim::Optimizer;

constexpr models::Gpt2Config small{
    .vocabulary = 48, .context = 16, .layers = 1, .heads = 2, .width = 64};

// Sequences of a chain over 48 symbols whose next symbol is, three times in four, one of two: its
// entropy is about 2 nats.
Batch sequences(std::int64_t step) {
  constexpr std::int64_t rows = 8, length = 16, symbols = 48;
  const Philox philox({11, static_cast<std::uint64_t>(step)}, {0});
  std::vector<std::int64_t> x, y;
  std::uint64_t draws = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t symbol = philox(draws++)[0] % symbols;
    for (std::int64_t t = 0; t < length; ++t) {
      x.push_back(symbol);
      const auto words = philox(draws++);
      symbol =
          (symbol * 7 + 3 + (words[0] % 4 == 0 ? words[1] % symbols : words[1] % 2 * 5)) % symbols;
      y.push_back(symbol);
    }
  }
  return {{Tensor::from(x, {rows, length}), Tensor::from(y, {rows, length})}};
}

struct SmallRun {
  models::Gpt2 model;
  TrainStep step;

  explicit SmallRun(const Optimizer& optimizer, DType dtype = f32, std::optional<double> clip = {})
      : model(make<models::Gpt2>(device::cpu, dtype, small)),
        step(model, optimizer, [this](const Batch& b) { return model.loss(b.x(), b.y()); },
             {.schedule = optim::constant(), .clip_norm = clip, .compile = {}}) {}

  std::vector<double> train(std::int64_t steps) {
    std::vector<double> losses;
    for (std::int64_t i = 0; i < steps; ++i) losses.push_back(step(sequences(step.step())).loss);
    return losses;
  }
};

// The mean of the last 40 losses of 250 steps.
double final_loss(const Optimizer& optimizer, DType dtype = f32) {
  const std::vector<double> losses = SmallRun(optimizer, dtype).train(250);
  double sum = 0.0;
  for (std::size_t i = losses.size() - 40; i < losses.size(); ++i) sum += losses[i];
  return sum / 40.0;
}

// Every optimizer with its state in every form.
std::vector<std::pair<std::string, Optimizer>> every_optimizer() {
  std::vector<std::pair<std::string, Optimizer>> all;
  for (std::string_view name : optim::names()) all.emplace_back(name, optim::by_name(name));
  all.emplace_back("sgd with momentum", optim::SGD{.momentum = 0.9});
  all.emplace_back("adamw in bfloat16", optim::AdamW{.state = bf16});
  all.emplace_back("adamw in bfloat16, stochastic",
                   optim::AdamW{.state = bf16, .rounding = optim::Rounding::stochastic});
  all.emplace_back("lion in bfloat16", optim::Lion{.state = bf16});
  all.emplace_back("adafactor with momentum", optim::Adafactor{.beta1 = 0.9});
  return all;
}

// --- Training

// Loss compared with Adam in float32. Moments in fewer bits add a noise of a few percent to steps,
// which averages out. Other algorithms have other rates and must only train nearly as well;
// gradient descent without momentum needs more steps.
TEST(Optimizer, TrainsALanguageModelLikeAdam) {
  const double rate = 3e-3, adam = final_loss(optim::Adam{.lr = rate});
  EXPECT_LT(adam, 2.2);  // from ln 48 = 3.9
  const struct {
    const char* name;
    Optimizer optimizer;
    double tolerance;
  } rows[] = {
      {"adamw", optim::AdamW{.lr = rate}, 0.01},
      {"bfloat16", optim::Adam{.lr = rate, .state = bf16}, 0.01},
      {"bfloat16, stochastic",
       optim::Adam{.lr = rate, .state = bf16, .rounding = optim::Rounding::stochastic}, 0.01},
      {"8 bits", optim::Adam8bit{.lr = rate}, 0.01},
      {"8 bits, all",
       optim::Adam8bit{.lr = rate, .min_quantised_elements = 0, .quantise_tables = true}, 0.01},
      {"8 bits, decoupled", optim::AdamW8bit{.lr = rate}, 0.01},
      {"4 bits", optim::AdamW4bit{.lr = rate}, 0.01},
      {"4 bits, all",
       optim::AdamW4bit{.lr = rate, .min_quantised_elements = 0, .quantise_tables = true}, 0.01},
      {"adafactor", optim::Adafactor{}, 0.02},
      {"adafactor with momentum",
       optim::Adafactor{
           .lr = rate, .relative_step = false, .scale_by_parameter = false, .beta1 = 0.9},
       0.02},
      {"lion", optim::Lion{.lr = rate / 10.0}, 0.02},
      {"lion in bfloat16", optim::Lion{.lr = rate / 10.0, .state = bf16}, 0.02},
      {"lomo", optim::LOMO{.lr = 0.5}, 0.1},
      {"lomo, clipped", optim::LOMO{.lr = 1.0, .clip_parameter_norm = 1.0}, 0.1},
  };
  for (const auto& [name, optimizer, tolerance] : rows) {
    const double loss = final_loss(optimizer);
    EXPECT_LT(loss, adam * (1.0 + tolerance)) << name;
    RecordProperty(name, std::to_string(loss / adam));
  }
}

TEST(Optimizer, TrainsHalfPrecisionParameters) {
  for (const auto& [name, optimizer] : every_optimizer()) {
    SmallRun run(optimizer, bf16);
    const std::vector<double> losses = run.train(20);
    for (double loss : losses) ASSERT_TRUE(std::isfinite(loss)) << name;
    EXPECT_LT(losses.back(), losses.front() + 0.05) << name;
  }
}

// --- Repetition

TEST(Optimizer, ResumesToTheBitFromACheckpoint) {
  for (const auto& [name, optimizer] : every_optimizer()) {
    SCOPED_TRACE(name);
    const std::vector<double> whole = SmallRun(optimizer, f32, 1.0).train(6);
    EXPECT_EQ(SmallRun(optimizer, f32, 1.0).train(6), whole) << "two runs differ";
    const TemporaryFolder folder;
    SmallRun first(optimizer, f32, 1.0);
    first.train(3);
    io::save_checkpoint(folder / "run.safetensors", first.model, first.step);
    SmallRun second(optimizer, f32, 1.0);
    io::load_checkpoint(folder / "run.safetensors", second.model, second.step);
    EXPECT_EQ(second.train(3), std::vector<double>(whole.begin() + 3, whole.end()));
    for (const auto& [path, variable] : second.step.optimizer_state().all())
      EXPECT_EQ(variable.type(), first.step.optimizer_state().all().at(path).type()) << path;
  }
}

TEST(Optimizer, BitsDoNotDependOnThreads) {
  const int before = threads();
  const Shape shape{130, 517};
  for (const auto& [name, optimizer] : every_optimizer()) {
    std::vector<std::vector<float>> results;
    for (int count : {1, 3}) {
      set_threads(count);
      const Variable p(random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{1}));
      optim::StateStore store;
      Program program(
          {{},
           {},
           optimizer.updates({{"p", p}},
                             {random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{2})},
                             full({}, 0.01, f64), full({}, 5.0, f64), {}, store)});
      for (int i = 0; i < 3; ++i) program.run();
      results.push_back(p.to_vector<float>());
      for (const auto& [path, variable] : store.all())
        for (double value : values_of(variable))
          results.back().push_back(static_cast<float>(value));
    }
    EXPECT_EQ(results[0], results[1]) << name;
  }
  set_threads(before);
}

// --- Memory

TEST(OptimizerState, BytesAreKnownBeforehand) {
  for (const auto& [name, optimizer] : every_optimizer()) {
    SCOPED_TRACE(name);
    SmallRun run(optimizer);
    const Bytes before = live_bytes();
    const std::int64_t nodes = live_nodes();
    const Bytes expected = state_bytes(optimizer, run.model.trainable_parameters());
    EXPECT_EQ(live_bytes(), before);
    EXPECT_EQ(live_nodes(), nodes);
    run.train(1);
    Bytes kept;
    for (const auto& [path, variable] : run.step.optimizer_state().all())
      kept += variable.type().bytes();
    EXPECT_EQ(kept, expected);
  }
}

// The figures of docs/optimizers.md: GPT-2 with 124 million parameters, of which 39 million are
// tables that quantised optimizers leave in float32.
TEST(OptimizerState, BytesOfGpt2) {
  const auto model = make<models::Gpt2>(device::cpu, f32, models::Gpt2Config{});
  const auto parameters = model.trainable_parameters();
  const double count = static_cast<double>(model.parameter_count());
  EXPECT_EQ(count, 124'439'808.0);
  const auto per_parameter = [&](const Optimizer& optimizer) {
    return static_cast<double>(state_bytes(optimizer, parameters).count) / count;
  };
  EXPECT_EQ(per_parameter(optim::SGD{}), 0.0);
  EXPECT_EQ(per_parameter(optim::SGD{.momentum = 0.9}), 4.0);
  EXPECT_EQ(per_parameter(optim::AdamW{}), 8.0);
  EXPECT_EQ(per_parameter(optim::AdamW{.state = bf16}), 4.0);
  EXPECT_EQ(per_parameter(optim::Lion{}), 4.0);
  EXPECT_EQ(per_parameter(optim::Lion{.state = bf16}), 2.0);
  EXPECT_EQ(per_parameter(optim::LOMO{}), 0.0);
  EXPECT_NEAR(per_parameter(optim::Adafactor{}), 0.01034, 5e-6);
  EXPECT_NEAR(per_parameter(optim::Adafactor{.beta1 = 0.9}), 4.01034, 5e-6);
  EXPECT_NEAR(per_parameter(optim::AdamW8bit{}), 3.9261, 5e-5);
  EXPECT_NEAR(per_parameter(optim::AdamW8bit{.quantise_tables = true}), 2.0371, 5e-5);
  EXPECT_NEAR(per_parameter(optim::AdamW4bit{}), 3.2649, 5e-5);
  EXPECT_NEAR(per_parameter(optim::AdamW4bit{.quantise_tables = true}), 1.0693, 5e-5);
}

// A single matrix, for which the papers state their figures.
TEST(OptimizerState, BytesOfAMatrix) {
  const Shape shape{768, 3072};
  const std::vector<nn::NamedVariable> matrix{{"w", Variable(zeros(shape))}};
  const double count = static_cast<double>(shape.elements());
  const auto per_parameter = [&](const Optimizer& optimizer) {
    return static_cast<double>(state_bytes(optimizer, matrix).count) / count;
  };
  EXPECT_EQ(per_parameter(optim::AdamW8bit{}), 2.0 + 8.0 / 256.0);
  EXPECT_EQ(per_parameter(optim::AdamW4bit{}), 1.0 + 8.0 / 128.0);
  EXPECT_EQ(per_parameter(optim::Adafactor{}), 4.0 * (768.0 + 3072.0) / count);
  EXPECT_LT(per_parameter(optim::Adafactor{}), 0.1);
}

// State is updated in place: with any optimizer, a step's arena is that of one without state,
// except for scalars and the workspace of an update.
TEST(OptimizerState, TakesNoArena) {
  const auto arena = [](const Optimizer& optimizer) {
    SmallRun run(optimizer);
    return run.step.plan(sequences(0).types()).live_peak;
  };
  const Bytes stateless = arena(optim::SGD{});
  for (const auto& [name, optimizer] : every_optimizer())
    EXPECT_LE(arena(optimizer), stateless + 4_KiB) << name;
}

struct Deep : nn::Module<Deep> {
  nn::List<nn::Linear> layers{at("layers"), 8, std::int64_t{256}, std::int64_t{256}};
  Tensor forward(Tensor x) {
    for (nn::Linear& layer : layers) x = relu(layer(x));
    return x;
  }
};

TEST(OptimizerState, LomoHoldsOneGradientAtATime) {
  const auto peak = [](const optim::LOMO& options, std::optional<double> clip) {
    auto model = make<Deep>(device::cpu, f32);
    TrainStep step(model, options, [&](const Batch& b) { return mean(square(model(b.x()))); },
                   {.schedule = optim::constant(), .clip_norm = clip, .compile = {}});
    return step.plan({{{4, 256}, f32}}).live_peak;
  };
  const Bytes one = 256_KiB;  // of a layer's weight
  EXPECT_LT(peak({}, {}), 2 * one);
  EXPECT_LT(peak({.clip_value = 1.0, .clip_parameter_norm = 1.0}, {}), 2 * one);
  EXPECT_GT(peak({}, 1.0), 8 * one);  // the norm of all needs all
}

TEST(OptimizerState, StepsAllocateNothing) {
  const Batch batch = sequences(0);
  for (const auto& [name, optimizer] : every_optimizer()) {
    SmallRun run(optimizer);
    for (int i = 0; i < 2; ++i) run.step(batch);
    const std::int64_t before = allocation_count();
    for (int i = 0; i < 3; ++i) run.step(batch);
    EXPECT_EQ(allocation_count() - before, 0) << name;
  }
}

// --- Which parameters

std::vector<std::string> state_names(const Optimizer& optimizer,
                                     const nn::NamedVariable& parameter) {
  std::vector<std::string> names;
  for (const optim::StateField& field : optimizer.state(parameter)) names.emplace_back(field.name);
  return names;
}

TEST(OptimizerState, SmallParametersAndTablesStayInFloat32) {
  const std::vector<std::string> floats{"exp_avg", "exp_avg_sq"},
      codes{"exp_avg.codes", "exp_avg.absmax", "exp_avg_sq.codes", "exp_avg_sq.absmax"};
  const nn::NamedVariable matrix{"matrix", Variable(zeros({64, 64}))},
      bias{"bias", Variable(zeros({4095}))},
      table{"table", Variable(zeros({64, 64})), nn::Role::table};
  EXPECT_EQ(state_names(optim::AdamW8bit{}, matrix), codes);
  EXPECT_EQ(state_names(optim::AdamW8bit{}, bias), floats);
  EXPECT_EQ(state_names(optim::AdamW8bit{}, table), floats);
  EXPECT_EQ(state_names(optim::AdamW8bit{.min_quantised_elements = 1}, bias), codes);
  EXPECT_EQ(state_names(optim::AdamW8bit{.quantise_tables = true}, table), codes);
  // A group decides for its own parameters.
  const auto named = [](const char* path) {
    return [path](const nn::NamedVariable& p) { return p.path == path; };
  };
  Optimizer grouped(optim::AdamW8bit{});
  grouped.with({.matches = named("matrix"), .quantise = false})
      .with({.matches = named("table"), .quantise = true});
  EXPECT_EQ(state_names(grouped, matrix), floats);
  EXPECT_EQ(state_names(grouped, table), codes);
  // Embeddings of models are tables.
  int tables = 0;
  for (const nn::NamedVariable& p :
       make<models::Gpt2>(device::cpu, f32, small).trainable_parameters())
    tables += p.role == nn::Role::table;
  EXPECT_EQ(tables, 2);
}

TEST(OptimizerState, CodesStartAtZero) {
  optim::StateStore store;
  const Variable p(zeros({300}));
  Optimizer(optim::AdamW4bit{.min_quantised_elements = 0})
      .updates({{"p", p}}, {zeros({300})}, zeros({}, f64), ones({}, f64), {}, store);
  EXPECT_EQ(store.all().at("p.exp_avg.codes").to_vector<std::uint8_t>(),
            std::vector<std::uint8_t>(150, 0x77));
  EXPECT_EQ(store.get("other", {{2}, u8}, device::cpu, 9.0).to_vector<std::uint8_t>(),
            std::vector<std::uint8_t>(2, 9));
  expect_error(
      [&] {
        store.get("other", {{3}, u8}, device::cpu, 9.0);
      },
      {"\"other\"", "uint8 (2,)", "uint8 (3,)"});
}

// Groups set rate and decay of every optimizer.
TEST(Optimizer, GroupsSetRateAndDecay) {
  for (const auto& [name, optimizer] : every_optimizer()) {
    const auto moved = [&](Optimizer grouped, double gradient) {
      const Variable p(ones({32, 32}));
      optim::StateStore store;
      grouped.with({.matches = [](const nn::NamedVariable&) { return true; },
                    .rate_factor = gradient == 0.0 ? 1.0 : 0.0,
                    .weight_decay = 0.5});
      Program({{},
               {},
               grouped.updates({{"p", p}}, {full({32, 32}, gradient)}, full({}, 0.01, f64),
                               ones({}, f64), {}, store)})
          .run();
      return 1.0 - static_cast<double>(p.to_vector<float>()[0]);
    };
    EXPECT_EQ(moved(optimizer, 1.0), 0.0) << name << " steps at a rate of zero";
    // Adam's decay goes through the gradient, and a first step has the size of the rate.
    const double decayed = name == "adam" || name == "adam8bit" ? 0.01 : 0.005;
    EXPECT_NEAR(moved(optimizer, 0.0), decayed, 1e-6) << name;
  }
}

TEST(Optimizer, NamesAndErrors) {
  EXPECT_EQ(optim::by_name("adamw8bit", 0.5).rate(), 0.5);
  EXPECT_EQ(optim::by_name("lion").rate(), 1e-4);
  for (std::string_view name : optim::names()) EXPECT_EQ(optim::by_name(name).rule().name(), name);
  expect_error([] { optim::by_name("adamax"); },
               {"\"adamax\"",
                "sgd, adam, adamw, adafactor, adam8bit, adamw8bit, adamw4bit, lion, "
                "lomo"});
  expect_error([] { optim::by_name("sgd", -1.0); }, {"rate", "-1"});
  expect_error([] { Optimizer(optim::Adam{.state = f16}); }, {"float32 or bfloat16", "float16"});
  expect_error([] { Optimizer(optim::AdamW{.rounding = optim::Rounding::stochastic}); },
               {"stochastic", "bfloat16", "float32"});
  expect_error([] { Optimizer(optim::LOMO{.clip_value = 0.0}); }, {"clip_value", "positive"});
  expect_error([] { Optimizer(optim::Adafactor{.relative_step = false, .warm_up = true}); },
               {"warm_up", "relative step"});
}

}  // namespace
}  // namespace ebb::test
