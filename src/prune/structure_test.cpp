// Tests groups that must be removed together, and the property that defines them: a model without a
// group computes what the dense model computes with the group's weights at zero.
#include "ebb/prune/structure.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ebb/ebb.h"
#include "ebb/optim/by_name.h"
#include "ebb/prune/models.h"
#include "ebb/prune/training.h"
#include "prune/blocks.h"

namespace ebb::prune {
namespace {

// Gives every variable non-zero values, so that no error stays hidden.
void randomise(const nn::ModuleBase& model) {
  std::uint64_t key = 1;
  const auto fill = [&](Variable v, double low, double high) {
    v.assign(eval(random_uniform(v.shape(), low, high, v.dtype(), v.device(), RandomKey{key++})));
  };
  for (const nn::NamedVariable& p : model.parameters()) fill(p.variable, -0.5, 0.5);
  for (const nn::NamedVariable& b : model.buffers()) fill(b.variable, 0.5, 1.5);
}

Tensor ids(const Shape& shape, std::int64_t vocabulary) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] =
        static_cast<std::int32_t>((7 * i * i + 3 * i) % static_cast<std::size_t>(vocabulary));
  return Tensor::from(values, shape);
}

models::Gpt2Config small_gpt2() {
  return {.vocabulary = 23, .context = 8, .layers = 3, .heads = 4, .width = 12, .hidden = 10};
}
models::LlamaConfig small_llama() {
  return {.vocabulary = 23,
          .width = 16,
          .hidden = 12,
          .layers = 2,
          .heads = 6,
          .key_value_heads = 3,
          .context = 8,
          .head_size = 4,
          .attention_bias = true};
}
models::ResNetConfig small_resnet(models::ResNetConfig::Block block, ImageLayout layout) {
  models::ResNetConfig c;
  c.block = block;
  c.stages = {1, 2};
  c.widths = {6, 8};
  c.classes = 5;
  c.layout = layout;
  return c;
}

template <class Model, class Config>
Model made(const Config& config) {
  return make<Model>(device::cpu, f32, config);
}

Batch token_batch() { return {{ids({2, 6}, 23), ids({2, 6}, 19)}}; }
Batch image_batch() {
  return {
      {eval(random_normal({2, 3, 6, 6}, 0.0, 1.0, f32, device::cpu, RandomKey{5})), ids({2}, 5)}};
}

template <class Model>
LossFunction loss_of(Model& model) {
  return [&model](const Batch& b) {
    if constexpr (std::is_base_of_v<models::CausalLm, Model> ||
                  std::is_same_v<Model, models::BertClassifier>)
      return model.loss(b.x(), b.y());
    else
      return cross_entropy(model(b.x()), b.y());
  };
}

template <class Model>
Structure structure_of(Model& model, const Batch& batch) {
  return find_structure(model, loss_of(model), batch.types());
}

template <class Model>
double loss(Model& model, const Batch& batch) {
  return eval(loss_of(model)(batch)).item();
}

int count(const Structure& s, Kind kind) {
  int n = 0;
  for (const Dimension& d : s.dimensions) n += d.kind == kind;
  return n;
}

// Prunes by magnitude and compares with the dense model whose groups are zero. Sums with fewer
// terms are rounded differently: the tolerance is that of float32 over a few hundred additions.
template <class Model>
void expect_masked_equals_removed(Model& dense, const Batch& batch,
                                  const StructuredOptions& options,
                                  const Removal* given = nullptr) {
  randomise(dense);
  const Structure s = structure_of(dense, batch);
  const Removal removal = given ? *given : choose(s, magnitude_scores(s), options);
  ASSERT_FALSE(removal.empty());
  const double before = loss(dense, batch);
  const auto smaller_model = pruned(dense, s, removal);
  EXPECT_LT(smaller_model->parameter_count(), dense.parameter_count());
  set_to_zero(s, removal);
  const double masked = loss(dense, batch), removed = loss(*smaller_model, batch);
  EXPECT_NEAR(removed, masked, 2e-5 * std::abs(masked));
  EXPECT_NE(before, masked);
}

TEST(PruneStructure, HeadsAndNeuronsOfGpt2) {
  auto model = made<models::Gpt2>(small_gpt2());
  const Structure s = structure_of(model, token_batch());
  EXPECT_EQ(count(s, Kind::heads), 3);
  EXPECT_EQ(count(s, Kind::neurons), 3);
  EXPECT_EQ(s.dimensions.size(), 6u);
  const Dimension& heads = s.dimensions.front();
  EXPECT_EQ(heads.path, "transformer.h.0.attn");
  ASSERT_EQ(heads.groups.size(), 4u);
  const Group& second = heads.groups[1];  // heads have 3 columns
  ASSERT_EQ(second.parts.size(), 3u);
  EXPECT_EQ(s.variables[second.parts[0].variable].path, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(second.parts[0].axis, 1);
  EXPECT_EQ(second.parts[0].ranges, (std::vector<Range>{{3, 6}, {15, 18}, {27, 30}}));
  EXPECT_EQ(s.variables[second.parts[2].variable].path, "transformer.h.0.attn.c_proj.weight");
  EXPECT_EQ(second.parts[2].axis, 0);
  EXPECT_EQ(second.parts[2].ranges, (std::vector<Range>{{3, 6}}));
  EXPECT_EQ(s.dimensions[1].path, "transformer.h.0.mlp");
  EXPECT_EQ(s.dimensions[1].groups.size(), 10u);
  ASSERT_EQ(s.blocks.size(), 3u);
  EXPECT_EQ(s.blocks[2].path, "transformer.h.2");
  EXPECT_TRUE(s.blocks[2].removable);
  EXPECT_EQ(s.products.size(), 12u);
}

TEST(PruneStructure, AKeyHeadOfLlamaGoesWithItsQueries) {
  auto model = made<models::Llama>(small_llama());
  const Structure s = structure_of(model, token_batch());
  ASSERT_EQ(count(s, Kind::heads), 2);
  const Dimension& heads = s.dimensions.front();
  ASSERT_EQ(heads.groups.size(), 3u);
  for (const Part& part : heads.groups[1].parts) {
    const std::string& path = s.variables[part.variable].path;
    const bool queries =
        path.find("q_proj") != std::string::npos || path.find("o_proj") != std::string::npos;
    EXPECT_EQ(part.ranges, (std::vector<Range>{queries ? Range{8, 16} : Range{4, 8}})) << path;
  }
  EXPECT_EQ(count(s, Kind::neurons), 2);
  EXPECT_EQ(s.dimensions[1].groups.size(), 12u);
}

TEST(PruneStructure, RemovedEqualsMasked) {
  {
    auto model = made<models::Gpt2>(small_gpt2());
    expect_masked_equals_removed(
        model, token_batch(), {.keep = 0.6, .kinds = {Kind::heads, Kind::neurons}, .blocks = true});
  }
  {
    models::Gpt2Config config = small_gpt2();
    config.tied = false, config.scale_by_inverse_layer = true;
    auto model = made<models::Gpt2>(config);
    expect_masked_equals_removed(model, token_batch(), {.keep = 0.3, .multiple = 2});
  }
  {
    auto model = made<models::Llama>(small_llama());
    expect_masked_equals_removed(model, token_batch(),
                                 {.keep = 0.5, .kinds = {Kind::heads}, .blocks = true});
  }
  {
    const models::BertConfig config{.vocabulary = 23,
                                    .width = 8,
                                    .layers = 2,
                                    .heads = 2,
                                    .hidden = 12,
                                    .context = 8,
                                    .classes = 19};
    auto model = made<models::BertClassifier>(config);
    const Batch batch{{ids({2, 6}, 23), ids({2}, 19)}};
    expect_masked_equals_removed(model, batch,
                                 {.keep = 0.5, .kinds = {Kind::neurons}, .under = "bert.encoder"});
  }
  {
    auto model = made<models::Mlp>(models::MlpConfig{27, 14, 5, 3});
    const Batch batch{
        {eval(random_normal({4, 27}, 0.0, 1.0, f32, device::cpu, RandomKey{5})), ids({4}, 5)}};
    expect_masked_equals_removed(model, batch, {.keep = 0.5});
  }
}

TEST(PruneStructure, ChannelsOfResNetsGoThroughNormsAndShortcuts) {
  for (const auto block :
       {models::ResNetConfig::Block::basic, models::ResNetConfig::Block::bottleneck})
    for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last}) {
      auto model = made<models::ResNet>(small_resnet(block, layout));
      const Structure s = structure_of(model, image_batch());
      const bool basic = block == models::ResNetConfig::Block::basic;
      // Inner channels of three blocks, the sums of two stages, and the stem where a convolution
      // follows it.
      EXPECT_EQ(count(s, Kind::channels), basic ? 5 : 9) << basic;
      expect_masked_equals_removed(model, image_batch(), {.keep = 0.6});
    }
}

// Removing any single group leaves a valid model.
TEST(PruneStructure, EveryGroupCanGoAlone) {
  auto model = made<models::Llama>(small_llama());
  const Structure s = structure_of(model, token_batch());
  for (std::size_t d = 0; d < s.dimensions.size(); ++d)
    for (int g = 0; g < static_cast<int>(s.dimensions[d].groups.size()); g += 2) {
      Removal removal;
      removal.groups.resize(s.dimensions.size());
      // The config has one number for all layers.
      for (std::size_t other = 0; other < s.dimensions.size(); ++other)
        if (s.dimensions[other].kind == s.dimensions[d].kind) removal.groups[other] = {g};
      expect_masked_equals_removed(model, token_batch(), {}, &removal);
    }
}

TEST(PruneStructure, WhatAConfigCannotExpressIsRefused) {
  auto model = made<models::Gpt2>(small_gpt2());
  const Structure s = structure_of(model, token_batch());
  Removal one_layer;
  one_layer.groups.resize(s.dimensions.size());
  one_layer.groups[1] = {0};
  EXPECT_THROW(pruned(model, s, one_layer), ShapeError);
  EXPECT_THROW(choose(s, magnitude_scores(s), {.kinds = {Kind::channels}}), ValueError);
  EXPECT_THROW(choose(s, magnitude_scores(s), {.keep = 0.0}), ValueError);
  EXPECT_THROW(choose(s, magnitude_scores(s), {.keep = 1.5}), ValueError);
  EXPECT_THROW(choose(s, magnitude_scores(s), {.keep = std::nan("")}), ValueError);
}

// The gradients of the remaining weights equal those of the masked model, so a step of the smaller
// model with the sliced state changes them as a step of the masked model does.
TEST(PruneStructure, TrainingGoesOnWithSlicedState) {
  auto dense = made<models::Gpt2>(small_gpt2());
  randomise(dense);
  const Batch batch = token_batch();
  const Structure s = structure_of(dense, batch);
  const optim::Optimizer optimizer = optim::AdamW{.lr = 1e-3};
  TrainStep step(dense, optimizer, loss_of(dense));
  for (int i = 0; i < 3; ++i) step(batch);
  const Removal removal = choose(s, magnitude_scores(s), {.keep = 0.5});
  const auto smaller_model = pruned(dense, s, removal);
  TrainStep next(*smaller_model, optimizer, loss_of(*smaller_model));
  copy_state(s, removal, step, next);
  EXPECT_EQ(next.step(), 3);
  EXPECT_LE(next.plan(batch.types()).persistent, step.plan(batch.types()).persistent);
  set_to_zero(s, removal);
  // Sums with fewer terms are rounded differently.
  EXPECT_NEAR(next(batch).loss, step(batch).loss, 1e-5);
  for (const nn::NamedVariable& p : smaller_model->parameters())
    for (std::size_t v = 0; v < s.variables.size(); ++v)
      if (s.variables[v].path == p.path) {
        const auto expected = without(s, removal, v).to_vector<float>();
        const auto actual = p.variable.to_vector<float>();
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < actual.size(); ++i)
          EXPECT_NEAR(actual[i], expected[i], 2e-5) << p.path;
      }

  TrainStep factored(dense, optim::by_name("adafactor"), loss_of(dense));
  TrainStep into(*smaller_model, optim::by_name("adafactor"), loss_of(*smaller_model));
  EXPECT_THROW(copy_state(s, removal, factored, into), ValueError);
  TrainStep other(*smaller_model, optim::by_name("sgd"), loss_of(*smaller_model));
  EXPECT_THROW(copy_state(s, removal, step, other), ValueError);
}

// Removes the last groups of every dimension of a model without values, and plans training steps.
template <class Model, class Config>
double planned_share_left(const Config& config, const std::vector<TensorType>& types,
                          const StructuredOptions& options) {
  auto dense = made<Model>(config);
  const Structure s = find_structure(dense, loss_of(dense), types);
  Scores scores;
  for (const Dimension& d : s.dimensions) {
    std::vector<double>& row = scores.groups.emplace_back();
    for (std::size_t g = 0; g < d.groups.size(); ++g) row.push_back(-static_cast<double>(g));
  }
  auto left = made<Model>(smaller(config, s, choose(s, scores, options)));
  const auto bytes = [&](Model& model) {
    TrainStep step(model, optim::AdamW{}, loss_of(model));
    const CategoryBytes& peak = step.plan(types).at_peak;
    return static_cast<double>(
        (peak[Category::weights] + peak[Category::gradients] + peak[Category::optimizer]).count);
  };
  return bytes(left) / bytes(dense);
}

TEST(PruneStructure, PlansOfRealSizesShrink) {
  const std::vector<TensorType> images{{{8, 3, 32, 32}, f32}, {{8}, i32}},
      tokens{{{1, 64}, i32}, {{1, 64}, i32}};
  const double resnet = planned_share_left<models::ResNet>(models::ResNetConfig::resnet50(), images,
                                                           {.keep = 0.7, .multiple = 8});
  EXPECT_LT(resnet, 0.55);
  models::LlamaConfig llama;  // grouped heads, with fewer layers for a short test
  llama.layers = 4;
  EXPECT_LT(planned_share_left<models::Llama>(llama, tokens, {.keep = 0.7, .multiple = 64}), 0.85);
}

TEST(PruneStructure, CommonPathsAreWholeNames) {
  EXPECT_EQ(common_path({"h.1.mlp.fc", "h.1.mlp.proj"}), "h.1.mlp");
  EXPECT_EQ(common_path({"h.1.a", "h.12.a"}), "h");
  EXPECT_EQ(common_path({"h.1", "h.1.a"}), "h.1");
  EXPECT_EQ(common_path({"a", "b"}), "");
}

TEST(PruneStructure, HowManyStay) {
  EXPECT_EQ(kept_of(12, 0.7), 8);
  EXPECT_EQ(kept_of(3072, 0.7), 2150);
  EXPECT_EQ(kept_of(3072, 0.7, 64), 2176);
  EXPECT_EQ(kept_of(3, 0.01), 1);
  EXPECT_EQ(kept_of(3, 0.01, 8), 3);
  EXPECT_EQ(kept_of(10, 1.0, 8), 8);
  EXPECT_EQ(lowest({3.0, 1.0, 2.0, 1.0}, 3), (std::set<int>{1, 2, 3}));
  EXPECT_THROW(lowest({3.0, std::nan("")}, 1), ValueError);
}

// Two layers with weights small enough to follow by hand.
class PruneScore : public testing::Test {
 protected:
  models::Mlp model = made<models::Mlp>(models::MlpConfig{2, 3, 2, 2});
  Batch batch{{Tensor::from(std::vector<float>{1, 2, -1, 3}, {2, 2}), ids({2}, 2)}};
  std::vector<float> in{1, 0, 0, 2, -1, 1}, in_bias{0.5, -1, 0}, out{1, 2, 3, -1, 0, 1},
      out_bias{0, 0};
  Structure s;

  void SetUp() override {
    const auto parameters = model.parameters();
    const std::vector<float>* values[] = {&in, &in_bias, &out, &out_bias};
    for (std::size_t i = 0; i < 4; ++i) {
      Variable v = parameters[i].variable;
      v.assign(Tensor::from(*values[i], v.shape()));
    }
    s = structure_of(model, batch);
    ASSERT_EQ(s.dimensions.size(), 1u);
    ASSERT_EQ(s.dimensions[0].groups.size(), 3u);
  }
};

TEST_F(PruneScore, Magnitude) {
  const auto scores = magnitude_scores(s).groups[0];
  // Row of the first weight, bias, column of the second.
  EXPECT_NEAR(scores[0], std::sqrt(1 + 0.25 + 1 + 1), 1e-6);
  EXPECT_NEAR(scores[1], std::sqrt(4 + 1 + 4 + 0.0), 1e-6);
  EXPECT_NEAR(scores[2], std::sqrt(1 + 1 + 0 + 9 + 1.0), 1e-6);
}

TEST_F(PruneScore, Activation) {
  DataScores data(s, Score::activation);
  EXPECT_THROW(data.scores(), ValueError);
  data.add(batch);
  data.add(batch);
  const auto scores = data.scores().groups[0];
  // relu(x W' + b): rows (1.5, 3, 1) and (0, 5, 4).
  EXPECT_NEAR(scores[0], (1.5 * 1.5) / 2, 1e-6);
  EXPECT_NEAR(scores[1], (9 + 25.0) / 2, 1e-6);
  EXPECT_NEAR(scores[2], (1 + 16.0) / 2, 1e-6);
}

TEST_F(PruneScore, Taylor) {
  DataScores data(s, Score::taylor);
  data.add(batch);
  const auto scores = data.scores().groups[0];
  std::vector<Tensor> variables;
  for (const auto& p : model.parameters()) variables.push_back(p.variable);
  const std::vector<Tensor> gradients = grad(loss_of(model)(batch), variables);
  std::vector<std::vector<float>> g;
  for (const Tensor& gradient : gradients) g.push_back(eval(gradient).to_vector<float>());
  for (std::size_t n = 0; n < 3; ++n) {
    double expected = std::abs(in_bias[n] * g[1][n]);
    for (std::size_t i = 0; i < 2; ++i)
      expected +=
          std::abs(in[2 * n + i] * g[0][2 * n + i]) + std::abs(out[3 * i + n] * g[2][3 * i + n]);
    EXPECT_NEAR(scores[n], expected, 1e-5);
  }
}

TEST_F(PruneScore, NamesAreChecked) {
  EXPECT_EQ(score_named("taylor"), Score::taylor);
  EXPECT_THROW(score_named("size"), ValueError);
  EXPECT_THROW(DataScores(s, Score::magnitude), ValueError);
}

}  // namespace
}  // namespace ebb::prune
