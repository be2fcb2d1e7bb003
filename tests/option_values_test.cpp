// Values that no option of the library accepts: each is an error that names its field.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ebb/ebb.h"
#include "ebb/models/bert.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "ebb/optim/schedule.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/settings.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                 infinite = std::numeric_limits<double>::infinity();

TEST(OptionValues, TensorsTooLargeToCount) {
  const std::int64_t large = std::int64_t{1} << 40;
  expect_error([&] { zeros({large, large}); }, {"2^59 elements", "1099511627776"});
  expect_error([&] { input({{large, 1 << 20}, f64}, "x"); }, {"2^59 elements"});
  const PathScope path("h.3");
  expect_error([&] { matmul(zeros({large, 1}), zeros({1, large})); }, {"matmul", "h.3"});
  EXPECT_EQ(Shape({large, large, 0}).elements(), 0);
  EXPECT_EQ(Shape({std::int64_t{1} << 59}).elements(), std::int64_t{1} << 59);
}

// Each tensor can be counted, but not all of them together.
TEST(OptionValues, GraphsTooLargeToCount) {
  Graph graph;
  for (int i = 0; i < 8; ++i)
    graph.inputs.push_back(input({{std::int64_t{1} << 58}, f64}, std::to_string(i)));
  graph.outputs.push_back(sum(graph.inputs[0]));
  expect_error([&] { plan_program(graph, {}); }, {"64.00 PiB"});
}

TEST(OptionValues, SizesOfModels) {
  using namespace models;
  const std::int64_t wraps = (std::int64_t{1} << 32) + 2;  // 2 in 32 bits
  for (const std::int64_t layers : {wraps, std::int64_t{0}, std::int64_t{-1}}) {
    expect_error([&] { Gpt2({.layers = layers}); }, {"GPT-2", "layers", std::to_string(layers)});
    expect_error([&] { Llama({.layers = layers}); }, {"Llama", "layers"});
    expect_error([&] { BertClassifier({.layers = layers}); }, {"BERT", "layers"});
    expect_error([&] { LanguageModel({.layers = layers}); }, {"language model", "layers"});
    expect_error([&] { Mlp({.layers = layers}); }, {"perceptron", "layers"});
  }
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-4}, std::int64_t{1} << 40}) {
    expect_error([&] { Gpt2({.width = size}); }, {"GPT-2", "width"});
    expect_error([&] { Gpt2({.heads = size}); }, {"GPT-2", "heads"});
    expect_error([&] { Gpt2({.vocabulary = size}); }, {"GPT-2", "vocabulary"});
    expect_error([&] { Llama({.heads = size}); }, {"Llama", "heads"});
    expect_error([&] { Llama({.key_value_heads = size}); }, {"Llama", "key_value_heads"});
    expect_error([&] { BertClassifier({.heads = size}); }, {"BERT", "heads"});
    expect_error([&] { BertClassifier({.classes = size}); }, {"BERT", "classes"});
    expect_error([&] { LanguageModel({.head_size = size}); }, {"head_size"});
    expect_error([&] { Mlp({.hidden = size}); }, {"perceptron", "hidden"});
    expect_error([&] { ResNet(ResNetConfig::resnet18(size)); }, {"ResNet", "classes"});
  }
  expect_error([] { Llama({.heads = 32, .key_value_heads = 5}); }, {"32 heads", "5 groups"});
  for (const double p : {nan, infinite, -0.1, 1.0})
    expect_error([&] { Gpt2({.layers = 1, .dropout = p}); }, {"GPT-2", "dropout"});
  expect_error([] { Llama({.rope_base = nan}); }, {"Llama", "rope_base"});
  expect_error([] { nn::Conv2d(nn::root_place(), 3, 4, 3, {.groups = 0}); }, {"0 groups"});
}

TEST(OptionValues, OfOptimizers) {
  using namespace optim;
  for (const double bad : {nan, infinite, -1.0}) {
    for (const std::string_view name : names())
      expect_error([&] { by_name(name, bad); }, {"learning rate (lr)"});
    expect_error([&] { make_rule(SGD{.momentum = bad}); }, {"SGD's momentum"});
    expect_error([&] { make_rule(SGD{.weight_decay = bad}); }, {"SGD's weight_decay"});
    expect_error([&] { make_rule(Adam{.beta1 = bad}); }, {"beta1"});
    expect_error([&] { make_rule(AdamW{.eps = bad}); }, {"eps"});
    expect_error([&] { make_rule(AdamW8bit{.beta2 = bad}); }, {"beta2"});
    expect_error([&] { make_rule(Lion{.beta2 = bad}); }, {"Lion's beta2"});
    expect_error([&] { make_rule(Adafactor{.eps_scale = bad}); }, {"eps_scale"});
    expect_error([&] { make_rule(LOMO{.clip_value = bad}); }, {"clip_value"});
    expect_error([&] { Optimizer(SGD{}).with_rate(bad); }, {"lr"});
    Group group = no_decay_for_vectors();
    group.rate_factor = bad;
    expect_error([&] { Optimizer(SGD{}).with(group); }, {"rate_factor"});
    expect_error([&] { step_decay(3, bad); }, {"gamma"});
    expect_error([&] { cosine(3, bad); }, {"floor"});
    expect_error([&] { reduce_on_plateau({.factor = bad}); }, {"factor"});
  }
  expect_error([] { make_rule(Adam{.beta1 = 1.0}); }, {"beta1"});
  expect_error([] { make_rule(SGD{.nesterov = true}); }, {"nesterov"});
  expect_error([] { linear_warmup(-1); }, {"warmup"});
}

TEST(OptionValues, OfTrainingSteps) {
  auto model = make<models::Mlp>(device::cpu, f32, models::MlpConfig{});
  const auto step = [&](const TrainOptions& options) {
    return TrainStep(
        model, optim::SGD{}, [](const Batch& b) { return b.x(); }, options);
  };
  for (const double bad : {nan, infinite, 0.0, -1.0}) {
    TrainOptions options;
    options.clip_norm = bad;
    expect_error([&] { step(options); }, {"clip_norm"});
  }
  TrainOptions options;
  options.clip_by = ClipBy::last_norm;
  expect_error([&] { step(options); }, {"clip_by"});
  options = {};
  options.accumulate = 0;
  expect_error([&] { step(options); }, {"accumulate"});
  options = {};
  options.schedule = nullptr;
  expect_error([&] { step(options); }, {"schedule"});
}

// The library refuses a setting that a workload does not use, whatever its value.
TEST(OptionValues, SettingsThatDoNotApply) {
  using namespace workloads;
  for (const std::string& name : workload_names())
    for (int s = 0; s < setting_count; ++s) {
      const Setting setting = static_cast<Setting>(s);
      Options options;
      options.name = name;
      std::optional<std::int64_t>* const sizes[] = {
          &options.layers,   &options.width,           &options.hidden,
          &options.heads,    &options.key_value_heads, &options.vocabulary,
          &options.sequence, &options.classes,         &options.depth};
      if (s < 9) *sizes[s] = 2;
      if (setting == Setting::dropout) options.dropout = 0.1;
      if (setting == Setting::layout) options.layout = ImageLayout::channels_last;
      // The last three concern files, and the fused loss only chooses between two forms of the same
      // loss.
      if (s >= static_cast<int>(Setting::fused_loss)) continue;
      const auto lora_users = users_of(Setting::lora);
      if (std::find(lora_users.begin(), lora_users.end(), name) != lora_users.end() &&
          s >= static_cast<int>(Setting::lora) && s <= static_cast<int>(Setting::base) &&
          setting != Setting::adapter)
        options.lora = 2;
      if (setting == Setting::pack) options.pack = true;
      if (setting == Setting::lora) options.lora = 2;
      if (setting == Setting::lora_alpha) options.lora_alpha = 2.0;
      if (setting == Setting::lora_dropout) options.lora_dropout = 0.1;
      if (setting == Setting::lora_modules) options.lora_modules = {"*"};
      if (setting == Setting::adapter) options.adapter = "folder";
      if (setting == Setting::base) options.base = "int8";
      if (setting == Setting::merge) options.merge = true;
      const auto users = users_of(setting);
      const bool used = std::find(users.begin(), users.end(), name) != users.end();
      EXPECT_EQ(used, uses(options, setting)) << name;
      EXPECT_EQ(used, !misfit(options).has_value()) << name;
      if (!used)
        expect_error([&] { make_workload(options); },
                     {std::string(workloads::name(setting)), name, users.front()});
    }
}

TEST(OptionValues, LevelsThatDoNotUseThem) {
  using namespace workloads;
  const auto wrong = [](const auto& change, const std::string& part) {
    MultilevelOptions options;
    options.common.name = "reweight";
    change(options);
    expect_error([&] { make_multilevel(options); }, {part});
  };
  wrong([](auto& o) { o.levels["chess"]; }, "chess");
  wrong([](auto& o) { o.levels["reweight"].method = mlo::Method::cg; }, "reweight.method");
  wrong([](auto& o) { o.levels["reweight"].unroll = 2; }, "reweight.unroll");
  wrong([](auto& o) { o.levels["classifier"].iterations = 3; }, "neumann and cg");
  wrong([](auto& o) { o.common.depth = 18; }, "depth");
  wrong([](auto& o) { o.classifier = "resnet32", o.common.hidden = 9; }, "hidden");
  wrong([](auto& o) { o.common.classes = 300; }, "256");
  wrong([](auto& o) { o.common.batch = 5000; }, "5000");
}

}  // namespace
}  // namespace ebb::test
