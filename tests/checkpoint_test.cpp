// A run resumed from a checkpoint repeats the same bits, and no fault leaves half a file.
#include "ebb/io/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ebb/ebb.h"
#include "ebb/io/safetensors.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/resnet.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const models::Gpt2Config tiny{
    .vocabulary = 17, .context = 8, .layers = 1, .heads = 2, .width = 8, .dropout = 0.1};

Batch tokens(std::int64_t seed) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 3 * 9; ++i) ids.push_back((i * i + 5 * seed * i + seed) % 17);
  const Tensor all = Tensor::from(ids, {3, 9});
  return {{eval(slice(all, 1, 0, 8)), eval(slice(all, 1, 1, 9))}};
}

// A model and its step, made anew as a second process would.
struct TinyRun {
  models::Gpt2 model = make<models::Gpt2>(device::cpu, f32, tiny);
  TrainStep step;

  explicit TinyRun(optim::SchedulePtr schedule = optim::linear_warmup(3, optim::cosine(10)))
      : step(model, optim::AdamW{.lr = 0.01},
             [this](const Batch& b) { return model.loss(b.x(), b.y()); },
             {.schedule = std::move(schedule),
              .clip_norm = 1.0,
              .compile = {.plan = {}, .seed = 7}}) {}

  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) losses.push_back(step(tokens(step.step())).loss);
    return losses;
  }
};

TEST(Checkpoint, ResumesToTheBitFromAnyStep) {
  TinyRun whole;
  const std::vector<double> expected = whole.train(8);
  for (int at = 0; at < 8; ++at) {
    const TemporaryFolder folder;
    {
      TinyRun first;
      first.train(at);
      io::save_checkpoint(folder / "run.safetensors", first.model, first.step, {{"place", "here"}});
    }
    TinyRun second;
    EXPECT_EQ(io::load_checkpoint(folder / "run.safetensors", second.model, second.step),
              (io::Notes{{"place", "here"}}));
    const std::vector<double> rest = second.train(8 - at);
    EXPECT_EQ(rest, std::vector<double>(expected.begin() + at, expected.end()))
        << "resumed at step " << at;
  }
}

// A token outside the vocabulary fails in the forward pass, before anything is overwritten: memory
// still holds the last complete step.
TEST(Checkpoint, AStepThatFailsIsNotPartOfIt) {
  const TemporaryFolder folder;
  TinyRun whole;
  const std::vector<double> expected = whole.train(4);
  EXPECT_TRUE(whole.step.intact());
  {
    TinyRun first;
    first.train(2);
    Batch bad = tokens(0);
    bad.tensors[0] = eval(full({3, 8}, 99.0, i64, device::cpu));
    expect_error([&] { first.step(bad); }, {"99", "[0, 17)"});
    EXPECT_EQ(first.step.step(), 2);
    ASSERT_TRUE(first.step.intact());
    io::save_checkpoint(folder / "run.safetensors", first.model, first.step);
  }
  TinyRun second;
  io::load_checkpoint(folder / "run.safetensors", second.model, second.step);
  EXPECT_EQ(second.train(2), std::vector<double>(expected.begin() + 2, expected.end()));
  // On the CPU the function runs after the step's updates.
  EXPECT_THROW(second.step(tokens(4), [] { throw ValueError("no batch"); }), ValueError);
  EXPECT_FALSE(second.step.intact());
}

TEST(Checkpoint, HoldsRunningStatisticsAndSchedules) {
  const TemporaryFolder folder;
  const models::ResNetConfig config{models::ResNetConfig::Block::basic, {1}, {4}, 3, 2};
  const Batch batch{{eval(random_normal({4, 3, 8, 8}, 0.0, 1.0, f32, device::cpu, RandomKey{1})),
                     eval(zeros({4}, i64))}};
  const auto losses = [&](bool resume) {
    auto model = make<models::ResNet>(device::cpu, f32, config);
    TrainStep step(model, optim::SGD{.lr = 0.1, .momentum = 0.9},
                   [&](const Batch& b) { return cross_entropy(model(b.x()), b.y()); },
                   {.schedule = optim::reduce_on_plateau({.factor = 0.5, .patience = 0}),
                    .clip_norm = {},
                    .compile = {}});
    if (resume) io::load_checkpoint(folder / "run.safetensors", model, step);
    std::vector<double> result;
    for (int i = resume ? 3 : 0; i < 6; ++i) {
      result.push_back(step(batch).loss);
      step.options().schedule->observe(1.0);
      if (!resume && i == 2) io::save_checkpoint(folder / "run.safetensors", model, step);
    }
    result.push_back(model.buffers().at(0).variable.to_vector<float>()[0]);
    return result;
  };
  const std::vector<double> whole = losses(false), rest = losses(true);
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 3, whole.end()));
}

// Kills a process that writes checkpoints continuously: the checkpoint left behind is always
// complete.
TEST(Checkpoint, KilledWhileWritingLosesNothing) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  std::vector<float> values(1 << 18);
  const auto write = [&](float value) {
    std::fill(values.begin(), values.end(), value);
    io::write_safetensors(file, {{"x", Tensor::from(values, {1 << 18})}},
                          {{"value", std::to_string(value)}});
  };
  write(0.0f);
  for (int round = 0; round < 8; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) write(static_cast<float>(i));
    }
    usleep(static_cast<useconds_t>(3000 + 5000 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const io::SafetensorsFile read(file);
    const std::vector<std::byte> bytes = read.bytes("x");
    const auto* data = reinterpret_cast<const float*>(bytes.data());
    EXPECT_EQ(std::to_string(data[0]), read.metadata().at("value"));
    EXPECT_EQ(std::count(data, data + values.size(), data[0]),
              static_cast<std::ptrdiff_t>(values.size()));
  }
}

TEST(Checkpoint, WhatDoesNotFitChangesNothing) {
  const TemporaryFolder folder;
  TinyRun run;
  run.train(2);
  io::save_checkpoint(folder / "run.safetensors", run.model, run.step);
  const auto before = run.model.parameters()[0].variable.to_vector<float>();

  auto other = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 18, .context = 8, .layers = 1, .heads = 2, .width = 8});
  TrainStep step(other, optim::AdamW{}, [&](const Batch& b) { return other.loss(b.x(), b.y()); });
  expect_error([&] { io::load_checkpoint(folder / "run.safetensors", other, step); },
               {"run.safetensors", "model.transformer.wte.weight", "(17, 8)", "(18, 8)"});
  auto deeper = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 17, .context = 8, .layers = 2, .heads = 2, .width = 8});
  TrainStep deeper_step(deeper, optim::AdamW{},
                        [&](const Batch& b) { return deeper.loss(b.x(), b.y()); });
  expect_error([&] { io::load_checkpoint(folder / "run.safetensors", deeper, deeper_step); },
               {"no tensor \"model.transformer.h.1."});

  io::write_safetensors(folder / "weights.safetensors", {{"x", eval(zeros({2}))}});
  expect_error([&] { io::load_checkpoint(folder / "weights.safetensors", run.model, run.step); },
               {"not a checkpoint", "format"});
  expect_error([&] { io::load_checkpoint(folder / "none.safetensors", run.model, run.step); },
               {"none.safetensors", "No such file"});
  std::ofstream(folder / "junk.safetensors") << "junk";
  expect_error([&] { io::load_checkpoint(folder / "junk.safetensors", run.model, run.step); },
               {"junk.safetensors", "8 bytes"});
  expect_error(
      [&] { io::save_checkpoint(folder / "no" / "folder.safetensors", run.model, run.step); },
      {"folder.safetensors", "cannot create"});
  EXPECT_EQ(run.model.parameters()[0].variable.to_vector<float>(), before);
}

// A limit on file sizes stands in for a full disk: the write fails midway, the old file stays.
TEST(Checkpoint, AFailedWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  const fs::path file = folder / "run.safetensors";
  io::write_safetensors(file, {{"x", eval(ones({4}))}});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  expect_error(
      [&] {
        io::write_safetensors(file, {{"x", eval(zeros({100000}))}});
      },
      {"run.safetensors", "cannot write"});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  const io::SafetensorsFile read(file);
  EXPECT_EQ(read.at("x").type, (TensorType{{4}, f32}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1)
      << "a temporary file was left";
}

}  // namespace
}  // namespace ebb::test
