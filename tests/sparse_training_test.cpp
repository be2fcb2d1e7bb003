// Training with masks of weights: dead weights stay zero with every optimizer and precision, runs
// resume to the bit, and masks take a bit a weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/resnet.h"
#include "ebb/optim/by_name.h"
#include "support/allocation_count.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

const models::Gpt2Config tiny{
    .vocabulary = 19, .context = 8, .layers = 2, .heads = 2, .width = 12, .dropout = 0.1};

Batch tokens(std::int64_t seed) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 3 * 9; ++i) ids.push_back((i * i + 5 * seed * i + seed) % 19);
  const Tensor all = Tensor::from(ids, {3, 9});
  return {{eval(slice(all, 1, 0, 8)), eval(slice(all, 1, 1, 9))}};
}

SparseTraining by(MaskMethod method, double sparsity = 0.6) {
  SparseTraining sparse{.method = method, .sparsity = sparsity, .until = 6, .every = 2};
  if (method == MaskMethod::rigl) sparse.schedule = MaskSchedule::constant;
  return sparse;
}

struct SparseRun {
  models::Gpt2 model;
  TrainStep step;

  explicit SparseRun(const SparseTraining& sparse, TrainOptions options = {},
                     optim::Optimizer optimizer = optim::AdamW{.lr = 0.01, .weight_decay = 0.1},
                     Device device = device::cpu)
      : model(make<models::Gpt2>(device, parameter_dtype(options.precision), tiny)),
        step(
            model, optimizer, [this](const Batch& b) { return model.loss(b.x(), b.y()); },
            with(std::move(options), sparse)) {}

  static TrainOptions with(TrainOptions options, const SparseTraining& sparse) {
    options.sparse = sparse;
    options.compile.seed = 7;
    return options;
  }
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) losses.push_back(step(tokens(step.step())).loss);
    return losses;
  }
  std::map<std::string, std::vector<double>> weights() const {
    std::map<std::string, std::vector<double>> all;
    for (const nn::NamedVariable& p : model.parameters()) all[p.path] = values_of(p.variable);
    return all;
  }
};

// Which weights of each mask are live.
using Masks = std::map<std::string, std::vector<bool>>;
Masks masks_of(SparseRun& run) {
  const auto masks = run.step.masks();
  Masks all;
  for (const nn::NamedVariable& p : run.model.parameters()) {
    const auto mask = masks.find(p.path);
    if (mask == masks.end()) continue;
    const auto bytes = mask->second.to_vector<std::uint8_t>();
    std::vector<bool>& bits = all[p.path];
    for (std::size_t i = 0; i < static_cast<std::size_t>(p.variable.shape().elements()); ++i)
      bits.push_back(bytes[i / 8] >> i % 8 & 1);
  }
  return all;
}

// The number of non-zero values that belong to dead weights; each weight has `each` values.
std::int64_t alive_in_death(const std::vector<double>& values, const std::vector<bool>& bits) {
  const std::size_t each = values.size() / bits.size();
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) count += !bits[i / each] && values[i] != 0.0;
  return count;
}

// Dead weights are zero, and so is the optimizer's state for them.
void expect_masked(SparseRun& run, const std::string& what) {
  const auto weights = run.weights();
  const Masks masks = masks_of(run);
  for (const auto& [path, bits] : masks)
    EXPECT_EQ(alive_in_death(weights.at(path), bits), 0) << what;
  for (const auto& [path, state] : run.step.optimizer_state().all())
    for (const auto& [weight, bits] : masks)
      if (path.starts_with(weight + ".") && !path.ends_with(".movement") &&
          !path.ends_with(".mask") &&
          state.shape().elements() % static_cast<std::int64_t>(bits.size()) == 0) {
        EXPECT_EQ(alive_in_death(values_of(state), bits), 0) << what << ": " << path;
      }
}

TEST(SparseTraining, DeadWeightsStayZeroWithEveryOptimizer) {
  for (const std::string_view rule : optim::names()) {
    if (rule.find("bit") != std::string::npos) continue;
    for (const MaskMethod method : {MaskMethod::magnitude, MaskMethod::rigl}) {
      SparseRun run(by(method), {}, optim::by_name(rule));
      run.train(9);
      expect_masked(run, std::string(rule));
      const TrainStep::MaskCounts counts = run.step.mask_counts();
      EXPECT_EQ(counts.tensors, 8);
      // ⌊0.6 · n⌋ of each weight of a layer: 432, 144, 576 and 576.
      EXPECT_EQ(counts.dead, 2 * (259 + 86 + 345 + 345)) << rule;
    }
  }
}

TEST(SparseTraining, DeadWeightsStayZeroInEveryPrecision) {
  using Kind = ParameterForm::Kind;
  const auto options = [](Precision precision, std::optional<ParameterForm> form = {}) {
    TrainOptions o;
    o.precision = precision, o.form = form;
    return o;
  };
  for (const TrainOptions& o : {options(Precision::mixed_bf16), options(Precision::mixed_fp16),
                                options(Precision::pure_bf16),
                                options(Precision::pure_bf16, ParameterForm{Kind::compensated}),
                                options(Precision::split_bf16),
                                options(Precision::split_bf16, ParameterForm{Kind::completed, 8})})
    for (const MaskMethod method :
         {MaskMethod::magnitude, MaskMethod::movement, MaskMethod::rigl}) {
      SparseRun run(by(method), o);
      run.train(9);
      expect_masked(run, std::string(name(o.precision)));
    }
}

TEST(SparseTraining, ScalingClippingAndPartsOfABatchGoWithMasks) {
  for (int which = 0; which < 5; ++which) {
    TrainOptions o;
    if (which == 0) o.clip_norm = 0.5;
    if (which == 1) o.clip_norm = 0.5, o.clip_by = ClipBy::two_backwards;
    if (which == 2) o.clip_norm = 0.5, o.clip_by = ClipBy::last_norm;
    if (which == 3) o.accumulate = 3;
    if (which == 4) o.guard = UpdateGuard::gradients;
    for (const MaskMethod method :
         {MaskMethod::magnitude, MaskMethod::movement, MaskMethod::rigl}) {
      SparseRun run(by(method), o);
      run.train(8);
      expect_masked(run, std::to_string(which));
    }
  }
}

// Gradients are clipped by the norm over live weights.
TEST(SparseTraining, DeadWeightsDoNotCountInTheGradientsNorm) {
  TrainOptions o;
  o.clip_norm = 1e9;
  SparseTraining all = by(MaskMethod::magnitude, 0.999);
  all.schedule = MaskSchedule::constant, all.until = 0;
  SparseRun sparse(all, o);
  SparseRun dense(by(MaskMethod::magnitude), o);  // its first change comes after the second step
  const double with = sparse.step(tokens(1)).gradient_norm,
               without = dense.step(tokens(1)).gradient_norm;
  EXPECT_LT(with, without);
  EXPECT_GT(with, 0.0);
}

// The weights that magnitude keeps, found by sorting the weights of the dense step.
TEST(SparseTraining, GradualMagnitudeFollowsTheCubicSchedule) {
  const SparseTraining sparse = by(MaskMethod::magnitude, 0.8);
  EXPECT_FALSE(sparse.share_after(0));
  EXPECT_FALSE(sparse.share_after(3));
  EXPECT_DOUBLE_EQ(*sparse.share_after(2), 0.8 * (1.0 - std::pow(4.0 / 6.0, 3)));
  EXPECT_DOUBLE_EQ(*sparse.share_after(4), 0.8 * (1.0 - std::pow(2.0 / 6.0, 3)));
  EXPECT_DOUBLE_EQ(*sparse.share_after(6), 0.8);
  EXPECT_FALSE(sparse.share_after(8));
  SparseTraining later_only = sparse;
  later_only.from = 90, later_only.until = 100;
  SparseRun run(sparse), dense(later_only);  // the same until the first change
  run.train(2), dense.train(2);
  const std::string path = "transformer.h.1.mlp.c_fc.weight";
  const auto bits = masks_of(run).at(path);
  const auto dead = std::count(bits.begin(), bits.end(), false);
  EXPECT_EQ(dead, static_cast<std::int64_t>(*sparse.share_after(2) * 12 * 48));
  const auto before = dense.weights().at(path), after = run.weights().at(path);
  double largest_dead = 0.0, least_live = 1e30;
  for (std::size_t i = 0; i < bits.size(); ++i)
    if (bits[i]) {
      least_live = std::min(least_live, std::abs(before[i]));
      EXPECT_EQ(after[i], before[i]);
    } else {
      largest_dead = std::max(largest_dead, std::abs(before[i]));
    }
  EXPECT_LE(largest_dead, least_live);
  run.train(4);
  const auto later = masks_of(run).at(path);
  for (std::size_t i = 0; i < bits.size(); ++i) EXPECT_FALSE(!bits[i] && later[i]);  // none returns
  EXPECT_EQ(std::count(later.begin(), later.end(), false), static_cast<std::int64_t>(0.8 * 576));
}

TEST(SparseTraining, MovementKeepsWhatGrows) {
  SparseTraining sparse = by(MaskMethod::movement, 0.5);
  sparse.until = 4, sparse.every = 4;
  SparseRun run(sparse);
  const std::string path = "transformer.h.0.attn.c_proj.weight";
  run.train(4);
  const auto score = values_of(run.step.optimizer_state().all().at(path + ".movement"));
  const auto bits = masks_of(run).at(path);
  double least_live = 1e30, largest_dead = -1e30;
  for (std::size_t i = 0; i < bits.size(); ++i)
    if (bits[i])
      least_live = std::min(least_live, score[i]);
    else
      largest_dead = std::max(largest_dead, score[i]);
  EXPECT_GE(least_live, largest_dead);
  EXPECT_EQ(std::count(bits.begin(), bits.end(), false), 72);
}

// With plain gradient descent, w' = w - rate · g gives the gradient, and with it the score.
TEST(SparseTraining, MovementAddsUpWeightTimesGradient) {
  SparseTraining sparse = by(MaskMethod::movement, 0.5);
  sparse.from = 90, sparse.until = 100;
  SparseRun run(sparse, {}, optim::SGD{.lr = 0.5});
  const std::string path = "transformer.h.0.mlp.c_proj.weight";
  std::vector<double> expected;
  for (int i = 0; i < 3; ++i) {
    run.step.plan(tokens(0).types());
    std::vector<double> before;
    for (const nn::NamedVariable& p : run.model.parameters())
      if (p.path == path) p.variable.materialise(7), before = values_of(p.variable);
    run.train(1);
    const std::vector<double> after = run.weights().at(path);
    expected.resize(before.size(), 0.0);
    for (std::size_t k = 0; k < before.size(); ++k)
      expected[k] -= before[k] * (before[k] - after[k]) / 0.5;
  }
  const auto score = values_of(run.step.optimizer_state().all().at(path + ".movement"));
  // The gradient comes from a difference of float32 numbers of size 0.1: an error of 1e-8.
  for (std::size_t k = 0; k < score.size(); ++k) EXPECT_NEAR(score[k], expected[k], 1e-7);
}

TEST(SparseTraining, RigLExchangesWeightsAndKeepsTheirNumber) {
  SparseRun run(by(MaskMethod::rigl, 0.7));
  run.train(1);
  const auto first = masks_of(run);
  run.train(1);  // a change is due after two steps
  const auto second = masks_of(run);
  run.train(1);
  EXPECT_EQ(masks_of(run), second);
  for (const auto& [path, bits] : first) {
    const auto& now = second.at(path);
    EXPECT_EQ(std::count(bits.begin(), bits.end(), true), std::count(now.begin(), now.end(), true));
    EXPECT_NE(bits, now) << path;
  }
  // After `until` the masks do not change.
  run.train(4);
  const auto last = masks_of(run);
  run.train(4);
  EXPECT_EQ(masks_of(run), last);
}

// Gradients that overflow do not tell which weights to grow.
TEST(SparseTraining, StepsThatAreSkippedExchangeNoWeights) {
  TrainOptions o;
  o.precision = Precision::mixed_fp16, o.loss_scale.initial = 0x1p100;
  SparseRun run(by(MaskMethod::rigl, 0.7), o);
  ASSERT_TRUE(run.step(tokens(0)).skipped);
  const auto masks = masks_of(run);
  const auto weights = run.weights();
  ASSERT_TRUE(run.step(tokens(1)).skipped);  // an exchange would be due
  EXPECT_EQ(masks_of(run), masks);
  EXPECT_EQ(run.weights(), weights);
}

TEST(SparseTraining, PatternsHoldAlongTheInputs) {
  SparseTraining sparse = by(MaskMethod::magnitude, 0.0);
  sparse.pattern = Pattern{2, 4};
  SparseRun run(sparse);
  run.train(6);
  for (const auto& [path, bits] : masks_of(run)) {
    const Shape shape = [&] {
      for (const nn::NamedVariable& p : run.model.parameters())
        if (p.path == path) return p.variable.shape();
      return Shape{};
    }();
    // GPT-2's weights are (inputs, outputs).
    for (std::int64_t out = 0; out < shape[1]; ++out)
      for (std::int64_t in = 0; in < shape[0]; in += 4) {
        int live = 0;
        for (std::int64_t k = 0; k < 4; ++k)
          live += bits[static_cast<std::size_t>((in + k) * shape[1] + out)];
        ASSERT_EQ(live, 2) << path << " " << in << " " << out;
      }
  }
}

TEST(SparseTraining, ResumesToTheBitFromAnyStep) {
  for (const MaskMethod method : {MaskMethod::magnitude, MaskMethod::movement, MaskMethod::rigl}) {
    SparseRun whole(by(method));
    const std::vector<double> expected = whole.train(8);
    for (const int at : {0, 1, 2, 4, 5, 7}) {
      const TemporaryFolder folder;
      {
        SparseRun first(by(method));
        first.step.plan(tokens(0).types());
        first.train(at);
        io::save_checkpoint(folder / "run.safetensors", first.model, first.step);
      }
      SparseRun second(by(method));
      second.step.plan(tokens(0).types());
      io::load_checkpoint(folder / "run.safetensors", second.model, second.step);
      EXPECT_EQ(second.train(8 - at), std::vector<double>(expected.begin() + at, expected.end()))
          << name(method) << " resumed at step " << at;
      EXPECT_EQ(second.weights(), whole.weights());
    }
  }
}

TEST(SparseTraining, BudgetsAndRecomputationChangeNoBit) {
  for (const MaskMethod method : {MaskMethod::movement, MaskMethod::rigl}) {
    SparseRun plain(by(method));
    const auto expected = plain.train(7);
    TrainOptions o;
    o.compile.plan.recompute = {Recompute::Mode::blocks};
    SparseRun again(by(method), o);
    EXPECT_EQ(again.train(7), expected);
    EXPECT_EQ(again.weights(), plain.weights());
  }
}

// A lottery ticket: the masks of a trained model applied to the initial weights.
TEST(SparseTraining, MasksOfAnotherRunStay) {
  const TemporaryFolder folder;
  SparseRun found(by(MaskMethod::magnitude));
  found.train(8);
  io::save_checkpoint(folder / "found.safetensors", found.model, found.step);
  const SparseTraining fixed{.method = MaskMethod::fixed, .schedule = MaskSchedule::constant};
  SparseRun ticket(fixed);
  ticket.step.plan(tokens(0).types());
  io::load_masks(folder / "found.safetensors", ticket.step);
  ticket.train(1);
  EXPECT_EQ(masks_of(ticket), masks_of(found));
  expect_masked(ticket, "ticket");
  ticket.train(7);
  EXPECT_EQ(masks_of(ticket), masks_of(found));
  EXPECT_NE(ticket.weights(), found.weights());

  SparseRun dense({.method = MaskMethod::magnitude, .sparsity = 0.5, .from = 90, .until = 100});
  TrainStep none(dense.model, optim::AdamW{},
                 [&](const Batch& b) { return dense.model.loss(b.x(), b.y()); });
  none(tokens(0));
  io::save_checkpoint(folder / "dense.safetensors", dense.model, none);
  expect_error([&] { io::load_masks(folder / "dense.safetensors", ticket.step); },
               {"dense.safetensors", ".mask"});
}

TEST(SparseTraining, ConvolutionsHaveMasksToo) {
  auto model = make<models::ResNet>(
      device::cpu, f32,
      models::ResNetConfig{models::ResNetConfig::Block::basic, {1, 1}, {8, 16}, 3, 10});
  TrainOptions options;
  options.sparse = {.method = MaskMethod::rigl,
                    .schedule = MaskSchedule::constant,
                    .sparsity = 0.5,
                    .until = 10,
                    .every = 1};
  const LossFunction loss = [&](const Batch& b) { return cross_entropy(model(b.x()), b.y()); };
  TrainStep step(model, optim::SGD{.lr = 0.1, .momentum = 0.9}, loss, options);
  for (int i = 0; i < 3; ++i)
    step({{eval(random_normal({4, 3, 16, 16}, 0.0, 1.0)), eval(zeros({4}, i64))}});
  const TrainStep::MaskCounts counts = step.mask_counts();
  EXPECT_GT(counts.tensors, 4);
  EXPECT_NEAR(static_cast<double>(counts.dead) / static_cast<double>(counts.weights), 0.5, 0.01);
  options.sparse = {.method = MaskMethod::magnitude, .pattern = Pattern{2, 4}, .until = 10};
  TrainStep patterned(model, optim::SGD{.lr = 0.1}, loss, options);
  expect_error(
      [&] {
        patterned.plan({{{4, 3, 16, 16}, f32}, {{4}, i64}});
      },
      {"2:4", "convolution", "weight"});
}

// A real width, where blocks of memory are not rounded up to more than their content.
Plan dense_or(const std::optional<SparseTraining>& sparse) {
  auto model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 2000, .context = 64, .layers = 4, .heads = 4, .width = 256});
  TrainOptions options;
  options.sparse = sparse;
  TrainStep step(
      model, optim::AdamW{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
  return step.plan({{{1, 64}, i64}, {{1, 64}, i64}});
}

TEST(SparseTraining, MasksTakeABitAWeight) {
  const Plan dense = dense_or({});
  for (const MaskMethod method : {MaskMethod::magnitude, MaskMethod::rigl}) {
    const Plan sparse = dense_or(by(method));
    EXPECT_LE(static_cast<double>(sparse.peak.count), 1.02 * static_cast<double>(dense.peak.count))
        << name(method);
    // The masks themselves: one bit for each of 4 · 12 · 256² weights, in 16 buffers of whole
    // pages.
    const Bytes bits{4 * 12 * 256 * 256 / 8};
    EXPECT_GE(sparse.persistent - dense.persistent, bits);
    EXPECT_LE(sparse.persistent - dense.persistent, bits + Bytes{16 * 4096});
  }
}

// The same choices, unless two weights are so close that rounding decides.
TEST(SparseTraining, AGpuChoosesAsTheCpuDoes) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  SparseTraining pattern = by(MaskMethod::magnitude, 0.0);
  pattern.pattern = Pattern{2, 4};
  const optim::Optimizer optimizer = optim::AdamW{.lr = 0.01};
  for (const SparseTraining& sparse :
       {by(MaskMethod::magnitude), by(MaskMethod::movement), by(MaskMethod::rigl), pattern}) {
    SparseRun here(sparse, {}, optimizer), there(sparse, {}, optimizer, device::cuda(0));
    SparseRun again(sparse, {}, optimizer, device::cuda(0));
    here.train(9);
    EXPECT_EQ(there.train(9), again.train(9));  // replayed graphs repeat the same bits
    expect_masked(there, std::string(name(sparse.method)));
    EXPECT_EQ(there.step.mask_counts().dead, here.step.mask_counts().dead);
    const auto a = masks_of(here), b = masks_of(there);
    std::int64_t same = 0, all = 0;
    for (const auto& [path, bits] : a)
      for (std::size_t i = 0; i < bits.size(); ++i) same += bits[i] == b.at(path)[i], ++all;
    EXPECT_GT(same, all * 9 / 10) << name(sparse.method);
  }
}

TEST(SparseTraining, StepsAllocateNothing) {
  SparseRun run(by(MaskMethod::rigl));
  const Batch batch = tokens(1);
  for (int i = 0; i < 3; ++i) run.step(batch);
  const std::int64_t allocations = allocation_count();
  for (int i = 0; i < 5; ++i) run.step(batch);  // one of them changes masks
  EXPECT_EQ(allocation_count() - allocations, 0);
}

TEST(SparseTraining, Errors) {
  const auto fails = [](const SparseTraining& sparse, const std::string& part) {
    expect_error([&] { SparseRun run(sparse); }, {part});
  };
  fails(by(MaskMethod::magnitude, 1.0), "greater than 0 and less than 1");
  fails({.sparsity = 0.5, .pattern = Pattern{2, 4}, .until = 9}, "both");
  fails({.pattern = Pattern{4, 4}, .until = 9}, "4:4");
  fails({.sparsity = 0.5, .until = 9, .every = 0}, "at least 1");
  fails({.sparsity = 0.5, .from = 9, .until = 9}, "must come after");
  fails({.method = MaskMethod::rigl, .sparsity = 0.5, .until = 9}, "constant");
  fails({.method = MaskMethod::movement, .schedule = MaskSchedule::constant, .sparsity = 0.5},
        "no weight has moved");
  fails({.method = MaskMethod::fixed, .schedule = MaskSchedule::constant, .sparsity = 0.5},
        "fixed masks");
  SparseTraining five = by(MaskMethod::magnitude, 0.0);
  five.pattern = Pattern{2, 5};
  expect_error([&] { SparseRun(five).train(1); }, {"c_attn.weight", "12 inputs", "runs of 5"});
  expect_error([&] { SparseRun(by(MaskMethod::magnitude)).step.make_state(); }, {"plan"});
  auto quantised = optim::by_name("adamw8bit");
  quantised.with({.matches = [](const nn::NamedVariable&) { return true; }, .quantise = true});
  expect_error([&] { SparseRun(by(MaskMethod::magnitude), {}, quantised).train(1); },
               {"few bits", "adamw"});
  TrainOptions ranks;
  ranks.ranks.leaves = 2, ranks.ranks.count = 2;
  expect_error([&] { SparseRun run(by(MaskMethod::magnitude), ranks); }, {"one rank"});
}

}  // namespace
}  // namespace ebb::test
