// Small trainings on several ranks, which are threads here.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/communicator.h"
#include "ebb/precision.h"
#include "ebb/train/ranks.h"

namespace ebb::test {

struct RankTraining {
  std::string model = "gpt2";  // llama, resnet
  std::int64_t leaves = 4;
  int ranks = 1;
  Shard shard = Shard::nothing;
  std::string optimizer = "adamw";
  double dropout = 0.0;  // of gpt2
  std::optional<double> clip = {};
  Precision precision = Precision::fp32;
  std::optional<int> activation_bits = {};
  std::int64_t steps = 2, batch = 12, width = 10;  // width: of gpt2 and llama
  std::optional<Bytes> budget = {};
  std::filesystem::path resume = {}, save = {};
};

struct RankResult {
  std::vector<double> losses;
  // Of the parameters, by their order; on ranks other than 0 empty if weights are sharded.
  std::vector<double> weights;
  double test_loss = 0.0;
  Bytes peak, held, state;
  Bytes kept;              // weights and state of this rank
  int gathered_again = 0;  // weights, in one step
};

// One rank's part. Checks the plan.
RankResult train(const RankTraining& run, const std::shared_ptr<Communicator>& communicator);
// All ranks' results.
std::vector<RankResult> on_ranks(const RankTraining& run);

// Expects the bits of `alone` on all ranks, and on each the memory that was planned.
void expect_same_bits(const RankTraining& run, const RankResult& alone);

}  // namespace ebb::test
