// A run's specification: every field is restored, and every field that matters is compared.
#include "ebb/workloads/train_spec.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ebb/data/generated.h"
#include "ebb/optim/optimizer.h"
#include "ebb/workloads/data_fingerprint.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using workloads::LevelOptions;
using workloads::OnResume;
using workloads::TrainSpec;

// Changes a field to another value.
void alter(std::string& value) { value += "x"; }
void alter(std::filesystem::path& value) { value += "/\xff with \"quotes\""; }  // no UTF-8
void alter(bool& value) { value = !value; }
void alter(std::int64_t& value) { value += 3; }
void alter(std::uint64_t& value) { value = ~value; }
void alter(int& value) { value += 3; }
void alter(double& value) { value += 0.1; }
void alter(ImageLayout& value) {
  value = value == ImageLayout::channels_last ? ImageLayout::channels_first
                                              : ImageLayout::channels_last;
}
void alter(mlo::Method& value) {
  value = value == mlo::Method::cg ? mlo::Method::sama : mlo::Method::cg;
}
void alter(Precision& value) {
  value = value == Precision::fp32 ? Precision::mixed_bf16 : Precision::fp32;
}
void alter(Recompute& value) { value.mode = Recompute::Mode::segment, ++value.segment; }
void alter(Bytes& value) { value += 7_B; }
void alter(std::vector<std::string>& value) { value.push_back("one more"); }
template <class T>
void alter(std::optional<T>& value) {
  value ? void(value.reset()) : alter(value.emplace());
}

// Calls `test` with the spec altered in one field after the other.
void each_alteration(const TrainSpec& spec, const auto& test) {
  int count = 0;
  TrainSpec::visit(spec, [&](const char*, const auto&, OnResume) { ++count; });
  for (int i = 0; i < count; ++i) {
    TrainSpec other = spec;
    int at = 0;
    TrainSpec::visit(other, [&](const char* name, auto& value, OnResume on_resume) {
      if (at++ != i) return;
      alter(value);
      test(other, std::string(name), on_resume);
    });
  }
}

// The same for the fields of the level "classifier".
void each_level_alteration(const TrainSpec& spec, const auto& test) {
  const auto visit = [](TrainSpec& s, const auto& field) {
    TrainSpec::visit_level(s.task.levels["classifier"], s.level_rules["classifier"], field);
  };
  int count = 0;
  TrainSpec all = spec;
  visit(all, [&](const char*, const auto&, OnResume) { ++count; });
  for (int i = 0; i < count; ++i) {
    TrainSpec other = spec;
    int at = 0;
    std::string altered;
    OnResume how = OnResume::free;
    visit(other, [&](const char* name, auto& value, OnResume on_resume) {
      if (at++ != i) return;
      alter(value);
      altered = name, how = on_resume;
    });
    test(other, altered, how);
  }
}

TrainSpec example() {
  TrainSpec spec;
  spec.task.common.name = "reweight";
  spec.schedule = "cosine";
  spec.task.common.data = "/data/set";
  spec.task.levels["classifier"].rate = 0.1;
  return spec;
}

TEST(TrainSpec, EveryFieldComesBack) {
  const TrainSpec spec = example();
  EXPECT_EQ(workloads::train_spec_from_json(workloads::to_json(spec)), spec);
  each_alteration(spec, [&](const TrainSpec& other, const std::string& name, OnResume) {
    EXPECT_NE(workloads::to_json(other), workloads::to_json(spec)) << name;
    EXPECT_EQ(workloads::train_spec_from_json(workloads::to_json(other)), other) << name;
  });
  each_level_alteration(spec, [&](const TrainSpec& other, const std::string& name, OnResume) {
    EXPECT_NE(workloads::to_json(other), workloads::to_json(spec)) << name;
    EXPECT_EQ(workloads::train_spec_from_json(workloads::to_json(other)), other) << name;
  });
}

TEST(TrainSpec, EveryFieldThatMattersIsCompared) {
  const TrainSpec spec = example();
  EXPECT_TRUE(workloads::differences(spec, spec).empty());
  each_alteration(spec, [&](const TrainSpec& other, const std::string& name, OnResume on_resume) {
    const auto found = workloads::differences(spec, other);
    ASSERT_EQ(found.size(), on_resume == OnResume::free ? 0u : 1u) << name;
    if (found.empty()) return;
    EXPECT_EQ(found[0].option, name == "optimizer.rule" ? "optimizer" : name);
    EXPECT_NE(found[0].saved, found[0].given);
  });
  each_level_alteration(spec, [&](const TrainSpec& other, const std::string& name, OnResume how) {
    const auto level = workloads::differences(spec, other);
    ASSERT_EQ(level.size(), how == OnResume::free ? 0u : 1u) << name;
    if (level.empty()) return;
    EXPECT_EQ(level[0].option,
              name == "optimizer.rule" ? "classifier.optimizer" : "classifier." + name);
  });
  TrainSpec level = spec;
  level.task.levels["classifier"].rate = 0.2;
  const auto found = workloads::differences(spec, level);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].option, "classifier.lr");
  EXPECT_EQ(found[0].saved, "0.1");
  EXPECT_EQ(found[0].given, "0.2");
}

TEST(TrainSpec, MoreStepsAreFreeUnlessTheScheduleDependsOnThem) {
  TrainSpec spec = example(), longer = spec;
  longer.steps += 100;
  EXPECT_EQ(workloads::differences(spec, longer).size(), 1u);
  spec.schedule = longer.schedule = "constant";
  EXPECT_TRUE(workloads::differences(spec, longer).empty());
}

TEST(TrainSpec, TakesWhatIsWanted) {
  const TrainSpec saved = example();
  TrainSpec given;
  given.task.common.name = "reweight";
  given.rate = 0.5, given.task.common.seed = 7;
  LevelOptions& given_level = given.task.levels["classifier"];
  given_level.rate = 0.7, given_level.unroll = 4;
  const TrainSpec both = workloads::overlaid(saved, given, [](const std::string& option) {
    return option == "lr" || option == "classifier.unroll";
  });
  EXPECT_EQ(both.rate, 0.5);
  EXPECT_EQ(both.task.common.seed, saved.task.common.seed);
  EXPECT_EQ(both.schedule, "cosine");
  EXPECT_EQ(both.task.levels.at("classifier").rate, 0.1);
  EXPECT_EQ(both.task.levels.at("classifier").unroll, 4);
}

TEST(TrainSpec, BadTextIsAnError) {
  expect_error([] { workloads::train_spec_from_json("{"); }, {"not JSON"});
  expect_error([] { workloads::train_spec_from_json("{}"); }, {"workload", "missing"});
  std::string text = workloads::to_json(example());
  const std::string seed = "\"seed\":0";
  const std::size_t at = text.find(seed);
  ASSERT_NE(at, std::string::npos);
  const auto with = [&](const std::string& other) {
    std::string changed = text;
    return changed.replace(at, seed.size(), other);
  };
  expect_error([&] { workloads::train_spec_from_json(with("\"seed\":-1")); }, {"seed", "-1"});
  expect_error([&] { workloads::train_spec_from_json(with("\"seed\":\"x\"")); }, {"seed", "x"});
  expect_error([&] { workloads::train_spec_from_json(with("\"seed\":0,\"sed\":1")); },
               {"no field \"sed\""});
  expect_error([&] { workloads::train_spec_from_json(with("\"seed\":0,\"seed\":1")); },
               {"\"seed\"", "twice"});
  const std::string deep = "\"seed\":" + std::string(100000, '[') + std::string(100000, ']');
  expect_error([&] { workloads::train_spec_from_json(with(deep)); }, {"nested"});
}

TEST(TrainSpec, NumbersThatFitNoFieldAreErrors) {
  TrainSpec spec = example();
  spec.steps = 77;
  const std::string text = workloads::to_json(spec), steps = "\"steps\":77";
  const auto with = [&](const std::string& other) {
    std::string changed = text;
    return changed.replace(text.find(steps), steps.size(), "\"steps\":" + other);
  };
  ASSERT_NE(text.find(steps), std::string::npos);
  for (const char* other : {"9223372036854775808", "18446744073709551615", "1e300", "7.5", "true"})
    expect_error([&] { workloads::train_spec_from_json(with(other)); }, {"\"steps\"", "cannot be"});
  EXPECT_EQ(workloads::train_spec_from_json(with("9223372036854775807")).steps,
            std::numeric_limits<std::int64_t>::max());
  spec.log = "a\xff";  // no UTF-8: a list of bytes
  const std::string bytes = workloads::to_json(spec), log = "\"log\":[97,255]";
  const std::size_t at = bytes.find(log);
  ASSERT_NE(at, std::string::npos);
  for (const char* other : {"[256]", "[-1]", "[1e300]", "[18446744073709551615]", "[true]", "{}"}) {
    std::string changed = bytes;
    changed.replace(at, log.size(), std::string("\"log\":") + other);
    expect_error([&] { workloads::train_spec_from_json(changed); }, {"\"log\"", "cannot be"});
  }
}

TEST(DataFingerprint, IsReadFromItsJson) {
  const workloads::DataFingerprint facts = workloads::data_fingerprint_from_json(
      R"({"items":"8 items","file \u00e9.txt":"4 bytes","count":3})");
  EXPECT_EQ(facts, (workloads::DataFingerprint{
                       {"items", "8 items"}, {"file \u00e9.txt", "4 bytes"}, {"count", "3"}}));
  for (const char* text : {"", "[]", "null", "{\"a\":1,\"a\":2}"})
    expect_error([&] { (void)workloads::data_fingerprint_from_json(text); }, {""});
  const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  expect_error([&] { (void)workloads::data_fingerprint_from_json(deep); }, {"nested"});
}

TEST(TrainSpec, OptimizersDescribeAllTheirOptions) {
  const optim::Optimizer plain(optim::AdamW{.lr = 1e-3});
  EXPECT_EQ(plain.description(), plain.with_rate(2.0).description());
  for (const optim::Optimizer& other :
       {optim::Optimizer(optim::AdamW{.beta1 = 0.8}), optim::Optimizer(optim::AdamW{.beta2 = 0.9}),
        optim::Optimizer(optim::AdamW{.eps = 1e-6}),
        optim::Optimizer(optim::AdamW{.weight_decay = 0.1}),
        optim::Optimizer(optim::AdamW{.state = bf16}),
        optim::Optimizer(optim::AdamW{.state = bf16, .rounding = optim::Rounding::stochastic}),
        optim::Optimizer(optim::AdamW{}).with(optim::no_decay_for_vectors()),
        optim::Optimizer(optim::Adam{})})
    EXPECT_NE(other.description(), plain.description());
}

TEST(DataFingerprint, TellsDataApart) {
  using workloads::data_fingerprint;
  const data::GaussianImages one({.images = 100}), same({.images = 100}),
      other_seed({.images = 100, .seed = 1}), more({.images = 101});
  EXPECT_EQ(data_fingerprint({}, one), data_fingerprint({}, same));
  EXPECT_NE(data_fingerprint({}, one), data_fingerprint({}, other_seed));
  EXPECT_NE(data_fingerprint({}, one), data_fingerprint({}, more));
  const TemporaryFolder folder;
  folder.write("train.txt", std::string(3 << 20, 'a'));
  const auto before = data_fingerprint(folder.path(), one);
  folder.write("notes.md", "not data");
  EXPECT_EQ(data_fingerprint(folder.path(), one), before);
  folder.write("train.txt", std::string((3 << 20) - 1, 'a') + "b");
  EXPECT_NE(data_fingerprint(folder.path(), one), before);
  EXPECT_EQ(data_fingerprint(folder / "train.txt", one), data_fingerprint(folder.path(), one));
}

// A change of any of a thousand images is noticed, in its class and under its name.
TEST(DataFingerprint, TellsImagesApart) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "train" / "cats");
  std::filesystem::create_directories(folder / "train" / "dogs");
  for (int i = 0; i < 1000; ++i)
    folder.write(fmt::format("train/{}/{}.png", i % 2 ? "cats" : "dogs", i), "pixels");
  const auto print = [&] { return workloads::files_fingerprint(folder.path()); };
  const auto before = print();
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(print(), before);
  folder.write("train/cats/501.png", "pixelz");
  EXPECT_NE(print(), before);
  folder.write("train/cats/501.png", "pixels");
  EXPECT_EQ(print(), before);
  std::filesystem::rename(folder / "train/cats/501.png", folder / "train/dogs/501.png");
  EXPECT_NE(print(), before);
}

}  // namespace
}  // namespace ebb::test
