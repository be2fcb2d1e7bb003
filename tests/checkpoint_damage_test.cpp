// Checkpoints that are damaged, have an earlier format, or are other files are refused, and change
// nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/safetensors.h"
#include "ebb/models/mlp.h"
#include "ebb/optim/by_name.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const models::MlpConfig small{.inputs = 6, .hidden = 5, .classes = 3, .layers = 2};

struct Trained {
  models::Mlp model;
  TrainStep step;

  explicit Trained(const optim::Optimizer& optimizer = optim::AdamW{.lr = 0.01},
                   TrainOptions options = {})
      : model(make<models::Mlp>(device::cpu, parameter_dtype(options.precision), small)),
        step(
            model, optimizer,
            [this](const Batch& b) {
              return cross_entropy(model(cast(b.x(), model.dtype())), b.y());
            },
            std::move(options)) {}

  static Batch batch() {
    return {{eval(random_normal({4, 6}, 0.0, 1.0, f32, device::cpu, RandomKey{1})),
             eval(zeros({4}, i64))}};
  }
};

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(CheckpointDamage, EveryFlippedBitIsAnError) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  Trained run;
  run.step(Trained::batch());
  io::save_checkpoint(file, run.model, run.step, {{"place", "here"}});
  const std::string whole = content(file);
  const auto before = run.model.parameters()[0].variable.to_vector<float>();
  std::mt19937_64 random(1);
  // Over the whole file: length, header, metadata, tensors and checksums.
  for (std::size_t byte = 0; byte < whole.size(); byte += 1 + random() % 24) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (random() % 8)));
    write(file, damaged);
    EXPECT_THROW(io::load_checkpoint(file, run.model, run.step), FileError) << "byte " << byte;
  }
  for (int i = 0; i < 20; ++i) {
    write(file, whole.substr(0, random() % whole.size()));
    EXPECT_THROW(io::load_checkpoint(file, run.model, run.step), FileError) << "cut off";
  }
  EXPECT_EQ(run.model.parameters()[0].variable.to_vector<float>(), before);
  write(file, whole);
  io::load_checkpoint(file, run.model, run.step);
}

TEST(CheckpointDamage, NamesTheTensorThatIsDamaged) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  Trained run;
  io::save_checkpoint(file, run.model, run.step);
  std::string bytes = content(file);
  // Tensors lie in order of name; the first of the data is a buffer or a weight of the model.
  const std::size_t header =
      8 + static_cast<unsigned char>(bytes[0]) + 256u * static_cast<unsigned char>(bytes[1]);
  bytes[header] = static_cast<char>(bytes[header] ^ 1);
  write(file, bytes);
  expect_error([&] { io::load_checkpoint(file, run.model, run.step); },
               {"run.safetensors", "damaged", "model."});
}

// The file's tensors with some left out or added, with right checksums.
void rewrite(const fs::path& from, const fs::path& to, const std::string& without,
             const std::string& with, const std::map<std::string, std::string>& metadata = {}) {
  const io::SafetensorsFile file(from);
  std::vector<io::NamedTensor> tensors;
  for (const auto& [name, entry] : file.entries())
    if (name != without)
      tensors.push_back({name, Tensor::from_bytes(file.bytes(name), entry.type)});
  if (!with.empty()) tensors.push_back({with, eval(zeros({2}))});
  auto all = file.metadata();
  for (const auto& [key, value] : metadata) all[key] = value;
  io::write_safetensors(to, std::move(tensors), all, io::Checksums::all);
}

TEST(CheckpointDamage, MissingAndStrangeTensorsAreErrors) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors", other = folder / "other.safetensors";
  Trained run;
  run.step(Trained::batch());
  io::save_checkpoint(file, run.model, run.step);
  const io::SafetensorsFile saved(file);
  for (const auto& [name, entry] : saved.entries()) {
    rewrite(file, other, name, "");
    expect_error([&] { io::load_checkpoint(other, run.model, run.step); }, {"no tensor", name});
  }
  for (const char* name : {"optimizer.layers.9.weight.exp_avg", "model.strange", "strange"}) {
    rewrite(file, other, "", name);
    expect_error([&] { io::load_checkpoint(other, run.model, run.step); }, {name, "no part"});
  }
  rewrite(file, other, "", "", {{"format", "ebb-checkpoint-1"}});
  expect_error([&] { io::load_checkpoint(other, run.model, run.step); },
               {"other.safetensors", "earlier ebb", "cannot be resumed"});
  rewrite(file, other, "", "", {{"step", "-1"}});
  expect_error([&] { io::load_checkpoint(other, run.model, run.step); }, {"step", "-1"});
  rewrite(file, other, "", "", {{"model", "0"}});
  expect_error([&] { io::load_checkpoint(other, run.model, run.step); }, {"trained"});
  // The same tensors without checksums.
  std::vector<io::NamedTensor> tensors;
  for (const auto& [name, entry] : saved.entries())
    tensors.push_back({name, Tensor::from_bytes(saved.bytes(name), entry.type)});
  auto metadata = saved.metadata();
  metadata.erase("checksums");
  io::write_safetensors(other, std::move(tensors), metadata);
  expect_error([&] { io::load_checkpoint(other, run.model, run.step); }, {"no checksums"});
}

TEST(CheckpointDamage, AnotherOptimizersStateIsAnErrorUnlessItIsToBeginAnew) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  Trained adam;
  for (int i = 0; i < 3; ++i) adam.step(Trained::batch());
  io::save_checkpoint(file, adam.model, adam.step);
  Trained lion(optim::Lion{}), plain(optim::SGD{}), frozen;
  expect_error([&] { io::load_checkpoint(file, plain.model, plain.step); },
               {"optimizer.", "exp_avg", "no part"});
  expect_error([&] { io::load_checkpoint(file, lion.model, lion.step); },
               {"optimizer.", "exp_avg_sq", "no part"});
  io::load_checkpoint(file, lion.model, lion.step, io::SavedState::none);
  EXPECT_EQ(lion.step.step(), 3);
  EXPECT_EQ(lion.step.optimizer_start(), 3);
  EXPECT_EQ(lion.model.parameters()[0].variable.to_vector<float>(),
            adam.model.parameters()[0].variable.to_vector<float>());
  frozen.model.freeze();
  expect_error([&] { io::load_checkpoint(file, frozen.model, frozen.step); }, {"no part"});
}

// An optimizer that begins anew at a later step takes the same step as at the very beginning:
// corrections for a short history count from there, even after another checkpoint.
TEST(CheckpointDamage, ANewOptimizerCountsItsOwnSteps) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  const auto weights = [](Trained& run) {
    return run.model.parameters()[0].variable.to_vector<float>();
  };
  Trained expected;
  expected.step(Trained::batch());
  expected.step(Trained::batch());
  Trained first;
  io::save_checkpoint(file, first.model, first.step);  // initial weights
  Trained later;
  later.step.set_step(5);
  for (const nn::NamedVariable& p : later.model.parameters()) p.variable.materialise();
  io::save_checkpoint(file, later.model, later.step);
  Trained resumed;
  io::load_checkpoint(file, resumed.model, resumed.step, io::SavedState::none);
  resumed.step(Trained::batch());
  io::save_checkpoint(file, resumed.model, resumed.step);
  Trained again;
  io::load_checkpoint(file, again.model, again.step);
  again.step(Trained::batch());
  EXPECT_EQ(weights(again), weights(expected));
}

// The state that a checkpoint expects is the state of a traced step, for every optimizer and
// precision.
TEST(CheckpointDamage, StateIsKnownBeforeTheFirstStep) {
  for (const std::string_view name : optim::names())
    for (const Precision precision :
         {Precision::fp32, Precision::mixed_fp16, Precision::pure_bf16, Precision::split_bf16}) {
      TrainOptions options;
      options.precision = precision;
      options.clip_norm = 1.0;
      if (precision != Precision::mixed_fp16) options.clip_by = ClipBy::last_norm;
      Trained known(optim::by_name(name), options), traced(optim::by_name(name), options);
      known.step.make_state();
      traced.step.plan(Trained::batch().types());
      std::map<std::string, TensorType> before, after;
      for (const auto& [path, v] : known.step.optimizer_state().all()) before[path] = v.type();
      for (const auto& [path, v] : traced.step.optimizer_state().all()) after[path] = v.type();
      EXPECT_EQ(before, after) << name << " in " << ebb::name(precision);
    }
}

TEST(CheckpointDamage, SeedsOfAllBitsComeBack) {
  const TemporaryFolder folder;
  TrainOptions options;
  options.compile.seed = ~std::uint64_t{0};
  Trained first(optim::AdamW{}, options), second(optim::AdamW{}, options), other;
  io::save_checkpoint(folder / "run", first.model, first.step, {{"a", "b"}});
  io::load_checkpoint(folder / "run", second.model, second.step);
  expect_error([&] { io::load_checkpoint(folder / "run", other.model, other.step); },
               {"seed 18446744073709551615, not 0"});
  const io::CheckpointSummary summary = io::read_summary(folder / "run");
  EXPECT_EQ(summary.step, 0);
  EXPECT_EQ(summary.notes, (io::Notes{{"a", "b"}}));
}

}  // namespace
}  // namespace ebb::test
