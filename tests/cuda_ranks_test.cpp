// Several ranks on GPUs. Here they share one GPU, which NCCL allows for tests (`ebb launch
// --share-gpu`). Tests that need a GPU and NCCL are skipped without them.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/cuda/rank_link.h"
#include "ebb/dist/ranks.h"
#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/train/train_step.h"
#include "ops/collective/collective.h"
#include "support/command_line.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool nccl_present() {
  try {
    return cuda_present() && cuda::require_nccl() > 0;
  } catch (const DeviceError&) {
    return false;
  }
}

#define NEEDS_NCCL() \
  if (!nccl_present()) GTEST_SKIP() << "no CUDA device, or no NCCL"

// Sets variables of the environment while it exists.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1), names_.push_back(name);
  }
  ~Environment() {
    for (const char* name : names_) unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<const char*> names_;
};

TEST(CudaRanks, TheStarterSaysWhichRankOfTheHostThisIs) {
  const auto place = [](const std::vector<std::pair<const char*, const char*>>& variables) {
    const Environment environment(variables);
    return dist::place_in_environment();
  };
  const auto torchrun = place({{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "there"},
                               {"MASTER_PORT", "1"}});
  EXPECT_EQ(torchrun->local_rank, 1);
  EXPECT_EQ(torchrun->local_size, 4);
  EXPECT_EQ(place({{"OMPI_COMM_WORLD_RANK", "3"},
                   {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})
                ->local_rank,
            0);
  EXPECT_EQ(place({{"SLURM_PROCID", "3"},
                   {"SLURM_NTASKS", "4"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_LOCALID", "2"}})
                ->local_rank,
            2);
  // Without the variable: consecutive ranks are on one host.
  EXPECT_EQ(place({{"RANK", "5"},
                   {"WORLD_SIZE", "8"},
                   {"LOCAL_WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "there"},
                   {"MASTER_PORT", "1"}})
                ->local_rank,
            1);
}

TEST(CudaRanks, RefusesWhatNcclCannotDo) {
  expect_usage_error("plan --workload mlp --ranks 2 --reduce fast", "NCCL");
  expect_usage_error("train --workload mlp --reduce fast --steps 1", "one rank");
  expect_usage_error("launch -n 2 --share-gpu -- train --workload mlp --steps 1", "--device cuda");
  expect_error(
      [] {
        plan_program({.inputs = {},
                      .outputs = {all_reduce({zeros({3})}, 2, 2, 0, Reduce::fast)},
                      .updates = {}});
      },
      {"[all_reduce]", "NCCL", "GPUs"});
}

// Plans for ranks on GPUs need neither a GPU nor NCCL.
TEST(CudaRanks, PlansNeedNoGpu) {
  if (!built_with_cuda()) GTEST_SKIP() << "built without CUDA";
  Bytes whole;
  for (const Shard shard : {Shard::nothing, Shard::state})
    for (const Reduce reduce : {Reduce::exact, Reduce::fast}) {
      auto model = make<models::Gpt2>(
          device::cuda(0), f32,
          models::Gpt2Config{
              .vocabulary = 530, .context = 16, .layers = 2, .heads = 4, .width = 64});
      TrainOptions options;
      options.ranks = {.leaves = 6, .count = 3, .rank = 1, .shard = shard, .reduce = reduce};
      options.compile.plan.tuning = std::make_shared<const Tuning>();
      TrainStep step(
          model, optim::AdamW{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
      const Plan& plan = step.plan({{{4, 16}, i64}, {{4, 16}, i64}});
      check_plan(plan);
      EXPECT_EQ(plan.device, device::cuda(0));
      if (shard == Shard::nothing && reduce == Reduce::exact) whole = plan.peak;
      if (shard == Shard::state) {
        EXPECT_LT(plan.peak, whole);
      }
    }
}

// One rank with many blocks: the kernel that adds them has the bits of the CPU's.
TEST(CudaRanks, SumsHaveTheBitsOfTheTree) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (const DType dtype : {f32, f64, bf16, f16})
    for (const Shape& shape : {Shape{1}, Shape{7, 31}, Shape{70001}, Shape{4096}})
      for (const int blocks : {1, 2, 3, 5, 8, 9, 13, 21}) {
        std::vector<Tensor> here, there;
        for (int b = 0; b < blocks; ++b) {
          here.push_back(eval(cast(random_uniform(shape, -1.0, 1.0, f32, device::cpu,
                                                  RandomKey{static_cast<std::uint64_t>(b)}),
                                   dtype)));
          there.push_back(to_device(here.back(), device::cuda(0)));
        }
        EXPECT_EQ(values_of(eval(all_reduce(there, 1, blocks))),
                  values_of(eval(all_reduce(here, 1, blocks))))
            << name(dtype) << " " << to_string(shape) << " × " << blocks;
        EXPECT_EQ(values_of(eval(reduce_scatter(there, 1, blocks))),
                  values_of(eval(reduce_scatter(here, 1, blocks))));
      }
}

const std::string gpt2 =
                      "train --workload gpt2 --layers 2 --width 64 --heads 4 --sequence 32 "
                      "--vocabulary 509 --dropout 0.1 --clip 1 --batch 24 --leaves 6 --threads 2 "
                      "--device cuda --eval-batches 0 ",
                  llama =
                      "train --workload llama --layers 2 --width 64 --heads 4 --sequence 32 "
                      "--vocabulary 509 --batch 24 --leaves 6 --threads 2 --device cuda "
                      "--eval-batches 0 ";

// The JSON on the last line.
Json result_of(int ranks, const std::string& command) {
  const Outcome outcome =
      run((ranks == 1 ? "" : "launch --share-gpu -n " + std::to_string(ranks) + " -- ") + command +
          " --json");
  EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.output;
  const std::string lines = '\n' + outcome.output;
  const std::size_t begin = lines.rfind("\n{");
  if (outcome.code != 0 || begin == std::string::npos) return {};
  return Json::parse(lines.substr(begin + 1));
}

TEST(CudaRanks, TheNumberOfRanksChangesNoBit) {
  NEEDS_NCCL();
  for (const std::string& task : {gpt2, llama})
    for (const char* precision : {"fp32", "split-bf16"}) {
      const std::string run = task + "--steps 4 --precision " + precision;
      const Json alone = result_of(1, run)["losses"];
      ASSERT_EQ(alone.size(), 4u);
      for (const auto& [ranks, shard] : {std::pair{2, "0"}, {3, "1"}})
        EXPECT_EQ(result_of(ranks, run + " --shard " + shard)["losses"], alone)
            << ranks << " ranks: " << run;
    }
}

TEST(CudaRanks, NcclsOwnOrderIsNear) {
  NEEDS_NCCL();
  const std::string run = llama + "--steps 4 --shard ";
  const Json exact = result_of(2, run + "1")["losses"];
  for (const char* shard : {"0", "1"}) {
    const Json fast = result_of(2, run + shard + " --reduce fast")["losses"];
    ASSERT_EQ(fast.size(), exact.size());
    for (std::size_t i = 0; i < fast.size(); ++i)  // sums of float32 in another order
      EXPECT_NEAR(fast[i].get<double>(), exact[i].get<double>(), 1e-4);
  }
}

TEST(CudaRanks, OneGpuForTwoRanksIsRefusedUnlessAskedFor) {
  NEEDS_NCCL();
  const Outcome outcome = run("launch -n 9 -- " + gpt2 + "--batch 18 --leaves 9 --steps 1");
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.output.find("use the same GPU"), std::string::npos) << outcome.output;
}

TEST(CudaRanks, ALostRankIsNamedByTheOthers) {
  NEEDS_NCCL();
  const TemporaryFolder folder;
  const std::string mark = (folder / "run").string();
  std::thread attacker([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!fs::exists(folder / "run/checkpoint.safetensors")) continue;
      for (const pid_t process : processes_of(mark, "RANK=1")) kill(process, SIGKILL);
      return;
    }
  });
  const Outcome outcome = run("launch --share-gpu -n 2 -- " + gpt2 +
                              "--steps 1000000 --checkpoint-every 5 --checkpoint " + mark);
  attacker.join();
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.output.find("rank 1 was lost in "), std::string::npos) << outcome.output;
  for (const char* rank : {"RANK=0", "RANK=1"})
    EXPECT_TRUE(processes_of(mark, rank).empty()) << rank;
}

}  // namespace
}  // namespace ebb::test
