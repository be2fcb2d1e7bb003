// CUDA devices below and above the ops: memory, copies, faults, whole training steps, checkpoints.
// Tests that need a device are skipped without one; plans are made for a device that is not there.
#include "core/cuda/cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"
#include "ebb/models/resnet.h"
#include "ebb/storage.h"
#include "ebb/train/train_step.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

const Device device = device::cuda(0);

#define NEEDS_CUDA() \
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device"

TEST(Cuda, ADeviceThatIsNotThereIsNamed) {
  expect_error([] { Storage::allocate(device::cuda(99), 64_B); }, {"cuda:99", "not available"});
  expect_error([] { (void)eval(ones({2}, f32, device::cuda(99))); }, {"cuda:99"});
}

TEST(Cuda, WhatAnAllocationTakes) {
  EXPECT_EQ(cuda::reservation(1_B), 512_B);
  EXPECT_EQ(cuda::reservation(1_MiB), 1_MiB);
  EXPECT_EQ(cuda::reservation(3_MiB + 1_B), 3_MiB + 512_B);
  EXPECT_EQ(cuda::reservation(65_MiB), 66_MiB);
  NEEDS_CUDA();
  for (const Bytes size : {32_MiB, 64_MiB, 65_MiB + 1_B, 1_GiB}) {
    const Bytes before = cuda::memory_info(device).free, taken = cuda::memory_taken(device);
    auto storage = Storage::allocate(device, size);
    cuda::synchronise(device);
    EXPECT_EQ(before - cuda::memory_info(device).free, storage->reserved()) << to_string(size);
    EXPECT_EQ(cuda::memory_taken(device) - taken, storage->reserved()) << to_string(size);
    storage.reset();
    EXPECT_EQ(cuda::memory_taken(device), taken) << to_string(size);
  }
  // Small ones share pages.
  for (const Bytes size : {5000_B, 1_MiB, 3_MiB + 1_B}) {
    const Bytes before = cuda::memory_info(device).free;
    std::vector<std::shared_ptr<Storage>> many;
    Bytes reserved;
    for (int i = 0; i < 300; ++i) {
      many.push_back(Storage::allocate(device, size));
      reserved += many.back()->reserved();
    }
    cuda::synchronise(device);
    EXPECT_LE(before - cuda::memory_info(device).free, reserved + 2_MiB) << to_string(size);
    many.clear();
    EXPECT_EQ(before, cuda::memory_info(device).free) << to_string(size);
  }
}

TEST(Cuda, PlacesThatAreFreeAreUsedAgain) {
  NEEDS_CUDA();
  const Bytes before = cuda::memory_info(device).free;
  struct Kept {
    std::shared_ptr<Storage> storage;
    std::vector<std::byte> bytes;
  };
  std::vector<Kept> kept;
  std::uint32_t random = 1;
  Bytes most;
  for (int i = 0; i < 600; ++i) {
    random = random * 1664525u + 1013904223u;
    if (kept.size() == 60) {  // nobody has written over its bytes
      const auto gone = kept.begin() + (random >> 8) % 60;
      std::vector<std::byte> back(gone->bytes.size());
      gone->storage->read(back);
      EXPECT_TRUE(back == gone->bytes) << "allocation " << i;
      kept.erase(gone);
    }
    std::vector<std::byte> bytes(1 + (random >> 10) % (3 << 20), static_cast<std::byte>(i));
    kept.push_back({Storage::allocate(device, {static_cast<std::int64_t>(bytes.size())}), bytes});
    kept.back().storage->write(bytes);
    most = std::max(most, before - cuda::memory_info(device).free);
  }
  EXPECT_LE(most, 60 * 3_MiB);
  kept.clear();
  EXPECT_EQ(before, cuda::memory_info(device).free);
}

TEST(Cuda, NewMemoryIsZeroAndCopiesKeepBytes) {
  NEEDS_CUDA();
  std::vector<std::byte> bytes(100000), back(bytes.size(), std::byte{1});
  auto storage = Storage::allocate(device, {static_cast<std::int64_t>(bytes.size())});
  storage->read(back);
  EXPECT_EQ(back, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  storage->write(bytes);
  storage->read(back);
  EXPECT_EQ(back, bytes);
  const Tensor there = Tensor::from_bytes(bytes, {{100000}, u8}, device);
  EXPECT_EQ(there.device(), device);
  EXPECT_EQ(to_device(there, device::cpu).to_vector<std::uint8_t>(),
            there.to_vector<std::uint8_t>());
}

TEST(Cuda, AMemoryErrorSaysHowMuchIsFree) {
  NEEDS_CUDA();
  expect_error([] { Storage::allocate(device, {1ll << 45}); },
               {"cannot allocate", "cuda:0", "are free"});
}

TEST(Cuda, RandomBitsAreThoseOfTheCpu) {
  NEEDS_CUDA();
  const auto uniform = [](Device d) {
    return random_uniform({1003}, -1.0, 3.0, f32, d, RandomKey{7}).to_vector<float>();
  };
  EXPECT_EQ(uniform(device), uniform(device::cpu));
  const auto mask = [](Device d) {
    return dropout(ones({1003}, f32, d), 0.3, RandomKey{8}).to_vector<float>();
  };
  EXPECT_EQ(mask(device), mask(device::cpu));
  // Logarithm and cosine are another library's: a unit in the last place of float64, which rarely
  // reaches float32.
  const auto a = random_normal({4096}, 0.0, 1.0, f32, device, RandomKey{9}).to_vector<float>(),
             b = random_normal({4096}, 0.0, 1.0, f32, device::cpu, RandomKey{9}).to_vector<float>();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
}

TEST(Cuda, BadIndicesAreErrorsThatNameTheOp) {
  NEEDS_CUDA();
  const Tensor table = zeros({3, 2}, f32, device);
  const auto ids = [](std::int64_t bad) {
    return to_device(Tensor::from(std::vector<std::int64_t>{0, bad}, {2}), device);
  };
  expect_error([&] { (void)eval(embedding(table, ids(3))); },
               {"[embedding]", "index 3", "position 1", "[0, 3)"});
  expect_error([&] { (void)eval(embedding(table, ids(-1))); }, {"[embedding]", "index -1"});
  EXPECT_EQ(embedding(table, ids(2)).to_vector<float>(), std::vector<float>(4, 0.0f));
  expect_error(
      [&] {
        (void)eval(cross_entropy(zeros({2, 3}, f32, device), ids(5)));
      },
      {"[cross_entropy]", "index 5"});
}

// --- Whole models

models::Gpt2Config small_gpt2() {
  return {.vocabulary = 101, .context = 32, .layers = 2, .heads = 2, .width = 32, .dropout = 0.1};
}

template <class Model, class Config, class Loss>
void plan_on_cuda(const char* what, const Config& config, const std::vector<TensorType>& batch,
                  const Loss& loss) {
  for (DType dtype : {f32, bf16}) {
    SCOPED_TRACE(what);
    auto model = make<Model>(device, dtype, config);
    TrainStep step(model, optim::AdamW{}, [&](const Batch& b) { return loss(model, b); },
                   {.schedule = optim::constant(), .clip_norm = 1.0, .compile = {}});
    std::vector<TensorType> types = batch;
    for (TensorType& type : types)
      if (is_floating(type.dtype)) type.dtype = dtype;
    check_plan(step.plan(types));
    EXPECT_EQ(step.plan(types).device, device);
  }
}

TEST(Cuda, PlansOfModelsNeedNoDevice) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  const std::vector<TensorType> tokens{{{4, 16}, i64}, {{4, 16}, i64}};
  const auto language = [](auto& model, const Batch& b) { return model.loss(b.x(), b.y()); };
  plan_on_cuda<models::Gpt2>("gpt2", small_gpt2(), tokens, language);
  plan_on_cuda<models::Llama>("llama",
                              models::LlamaConfig{.vocabulary = 101,
                                                  .width = 32,
                                                  .hidden = 64,
                                                  .layers = 2,
                                                  .heads = 4,
                                                  .key_value_heads = 2,
                                                  .context = 32},
                              tokens, language);
  for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
    plan_on_cuda<models::ResNet>(
        "resnet",
        models::ResNetConfig{
            models::ResNetConfig::Block::bottleneck, {1, 1}, {8, 16}, 3, 10, layout},
        {{{4, 3, 16, 16}, f32}, {{4}, i64}},
        [](auto& model, const Batch& b) { return cross_entropy(model(b.x()), b.y()); });
}

// Losses of a few steps.
std::vector<double> train(Device where, Precision precision, int steps) {
  auto model = make<models::Gpt2>(where, parameter_dtype(precision), small_gpt2());
  TrainStep step(model, optim::AdamW{.lr = 1e-3},
                 [&](const Batch& b) { return model.loss(b.x(), b.y()); },
                 {.clip_norm = 1.0, .precision = precision, .compile = {}});
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    const auto tokens = [&](int shift) {
      std::vector<std::int64_t> ids(4 * 16);
      for (std::size_t k = 0; k < ids.size(); ++k)
        ids[k] =
            static_cast<std::int64_t>((k * 7 + static_cast<std::size_t>(i + shift) * 13) % 101);
      return Tensor::from(ids, {4, 16});
    };
    losses.push_back(step({{tokens(0), tokens(1)}}).loss);
  }
  return losses;
}

TEST(Cuda, TrainingAgreesWithTheCpuAndRepeats) {
  NEEDS_CUDA();
  const int steps = 50;
  const std::vector<double> first = train(device, Precision::fp32, steps),
                            host = train(device::cpu, Precision::fp32, steps);
  EXPECT_EQ(train(device, Precision::fp32, steps), first);
  // Same weights, masks and batches; float32 rounding grows by Adam's division in early steps.
  for (std::size_t i = 0; i < host.size(); ++i) EXPECT_NEAR(first[i], host[i], 2e-3) << i;
  for (const Precision precision : {Precision::mixed_bf16, Precision::split_bf16}) {
    const std::vector<double> half = train(device, precision, steps);
    EXPECT_EQ(train(device, precision, steps), half);
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_NEAR(half[i], host[i], 0.01 * host[i]) << name(precision) << ' ' << i;
  }
}

// An announced tensor arrives like a fed one, even if another tensor is then fed.
TEST(Cuda, InputsThatAreExpected) {
  NEEDS_CUDA();
  const TensorType type{{512, 1024}, f32};
  const Tensor x = input(type, "x", device);
  Program program({.inputs = {x}, .outputs = {x * 2.0}, .updates = {}});
  std::vector<Tensor> values;
  for (std::uint64_t i = 0; i < 6; ++i)
    values.push_back(eval(random_normal(type.shape, 0.0, 1.0, f32, device::cpu, RandomKey{i})));
  program.feed(0, values[0]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool other = i == 3;  // something else comes than was expected
    const Tensor& next = values[std::min(i + 1, values.size() - 1)];
    program.run([&] { program.expect(0, other ? values[0] : next); });
    EXPECT_EQ(values_of(program.output(0)), values_of(eval(values[i] * 2.0))) << i;
    program.feed(0, next);
  }
  expect_error([&] { program.expect(0, eval(zeros({2}))); }, {"[feed]", "(512, 1024)", "(2,)"});
  EXPECT_THROW(program.run([] { throw std::runtime_error("meanwhile"); }), std::runtime_error);
  program.feed(0, values[2]);
  program.run();
  EXPECT_EQ(values_of(program.output(0)), values_of(eval(values[2] * 2.0)));
}

TEST(Cuda, TimedRunsTellEveryInstruction) {
  NEEDS_CUDA();
  const Tensor x = eval(random_normal({1024, 1024}, 0.0, 1.0, f32, device, RandomKey{1}));
  Program program({.inputs = {}, .outputs = {sum(matmul(x, x))}, .updates = {}});
  program.run();
  const std::vector<double> times = program.timed_run();
  EXPECT_EQ(times.size(), program.plan().instructions.size());
  EXPECT_GT(std::accumulate(times.begin(), times.end(), 0.0), 0.0);
}

// A timed run gives the same results whether it is the first run, the recorded one, or between
// recorded ones.
TEST(Cuda, TimedRunsAreRuns) {
  NEEDS_CUDA();
  const Variable count(zeros({4096}, f32, device));
  Program program({.inputs = {}, .outputs = {sum(count)}, .updates = {{count, count + 1.0}}});
  for (int run = 0; run < 9; ++run) {
    if (run % 4 == 3) {
      program.run();
    } else {
      for (const double ms : program.timed_run()) EXPECT_GT(ms, 0.0) << "run " << run;
    }
    EXPECT_EQ(program.output(0).item(), 4096.0 * run) << "run " << run;
  }
}

}  // namespace
}  // namespace ebb::test
