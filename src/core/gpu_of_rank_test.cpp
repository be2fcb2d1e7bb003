#include "core/gpu_of_rank.h"

#include <gtest/gtest.h>

#include "ebb/communicator.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

GpuOfRank gpu(const std::string& machine, const std::string& bus) {
  return {.problem = {},
          .host = "node-" + machine,
          .machine = machine,
          .bus = bus,
          .device = "cuda:0",
          .nccl_host = {},
          .nccl_version = 22809};
}

TEST(GpuOfRank, TextsAreReadBack) {
  GpuOfRank one = gpu("a", "0000:01:00.0");
  one.problem = "no \"driver\"\n", one.nccl_host = "other";
  const GpuOfRank again = gpu_of_rank(text_of(one));
  EXPECT_EQ(text_of(again), text_of(one));
  EXPECT_EQ(again.problem, one.problem);
  EXPECT_EQ(again.nccl_version, 22809);
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
}

TEST(GpuOfRank, EveryRankNeedsItsOwn) {
  const GpuOfRank first = gpu("a", "01"), second = gpu("a", "02"), elsewhere = gpu("b", "01");
  EXPECT_NO_THROW(require_gpus_for_all({first, second, elsewhere}));
  expect_error(
      [&] {
        require_gpus_for_all({first, second, elsewhere, second});
      },
      {"ranks 1 and 3", "node-a", "cuda:0 at 02", "--share-gpu"});
  // NCCL takes processes with different identifiers for processes of different machines.
  GpuOfRank shared = first;
  shared.nccl_host = "1";
  EXPECT_NO_THROW(require_gpus_for_all({first, shared}));
}

TEST(GpuOfRank, WhatIsMissingOnOneRankIsToldByAll) {
  GpuOfRank without = gpu("b", "01"), older = gpu("c", "01");
  without.problem = "NCCL is needed";
  expect_error(
      [&] {
        require_gpus_for_all({gpu("a", "01"), without});
      },
      {"rank 1 on node-b", "NCCL is needed"});
  older.nccl_version = 22703;
  try {
    require_gpus_for_all({gpu("a", "01"), gpu("b", "01"), older});
    FAIL() << "two versions cannot talk to each other";
  } catch (const RankError& error) {
    EXPECT_EQ(error.rank, 2);
    EXPECT_NE(std::string(error.what()).find("NCCL 2.27.3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ebb::test
