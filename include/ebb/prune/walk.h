// How the blocks of a model are visited one after the other, for methods that judge a block by its
// inputs (ebb/prune/weights.h, ebb/prune/gptq.h). One block's weights and activations are enough:
// with a store, the others need not be in memory.
#pragma once

#include <filesystem>
#include <optional>

#include "ebb/bytes.h"
#include "ebb/nn/module.h"

namespace ebb::prune {

// Where the values of a model's variables are while they are not in memory, such as in a folder.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  // Gives a variable its value.
  virtual void fetch(const nn::NamedVariable& variable) = 0;
  // Takes the last value of a variable, once.
  virtual void keep(const nn::NamedVariable& variable) = 0;
  // Frees the value of a variable, which may be fetched again if it has not changed.
  virtual void release(const nn::NamedVariable& variable) = 0;
  // An upper bound of what `fetch` and `keep` allocate in addition to the variable's own bytes.
  virtual Bytes extra_bytes(const nn::NamedVariable& variable) const = 0;
};

struct WalkOptions {
  WeightStore* store = nullptr;  // null: the model has its values, and keeps them
  // Limit of the walk's memory, including `fixed` bytes that the process already holds. The values
  // between blocks stay in memory if they fit, and otherwise go to a file without a name in
  // `folder`. This choice changes no bit of the result. A budget that cannot be kept is a
  // MemoryError that names the smallest one that can.
  std::optional<Bytes> budget = {};
  Bytes fixed = {};
  std::filesystem::path folder = {};
  bool losses = false;  // whether the mean losses of the batches before and after are computed
};

struct WalkReport {
  Bytes planned;  // the walk's peak memory, WalkOptions::fixed included
  bool values_in_file = false;
  // The inputs of a block's matrices were judged one after the other instead of all at once.
  bool one_input_at_a_time = false;
  std::optional<double> loss_before, loss_after;
};

}  // namespace ebb::prune
