// One-shot pruning and GPTQ of a folder, block by block from one folder to another.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "ebb/prune/weights.h"
#include "ebb/quantised.h"
#include "io/hugging_face/weights.h"

namespace ebb::cli {

struct OneShot {
  nn::ModuleBase& model;  // without values
  const io::FolderWeights& weights;
  const nn::ModuleBase& form;  // how the weights are written
  LossFunction loss;
  prune::Method method = prune::Method::magnitude;
  prune::Sparsity sparsity = {};
  std::optional<LowBits> bits = {};              // instead of both: GPTQ
  std::filesystem::path folder = {}, save = {};  // of the weights; the one to write
  std::optional<Bytes> budget = {};              // of the process
  bool overcommit = false;

  // Writes the folder and adds the results to `result`. Returns the exit code: `over_budget` if the
  // budget was exceeded.
  int run(const std::vector<Batch>& batches, const std::vector<TensorType>& types,
          nlohmann::ordered_json& result) const;
};

}  // namespace ebb::cli
