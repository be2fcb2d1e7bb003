// A training run in one file: weights, buffers, optimizer state, step, schedule and the caller's
// notes (the run's specification, the position in the data). It is written whole or not at all,
// carries checksums of every byte, and a run resumed from it repeats the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "ebb/bytes.h"
#include "ebb/nn/module.h"
#include "ebb/train/train_step.h"

namespace ebb::io {

using Notes = std::map<std::string, std::string>;

void save_checkpoint(const std::filesystem::path& file, const nn::ModuleBase& model,
                     TrainStep& step, const Notes& notes = {});

// How the optimizer state of the file is used.
enum class SavedState : std::uint8_t {
  all,      // it must match the optimizer's state exactly
  fitting,  // tensors with the same name and type are loaded; the rest starts from its initial
            // value
  none,     // all state starts from its initial value, and the optimizer's step count from 0
};

// Restores model and step, and gives back the notes. Nothing is changed when the file is damaged,
// or when it does not hold exactly the tensors of the model and its optimizer.
Notes load_checkpoint(const std::filesystem::path& file, nn::ModuleBase& model, TrainStep& step,
                      SavedState state = SavedState::all);

// Takes over the masks of weights in the file. `step` must have masks of exactly these weights;
// nothing is changed otherwise, or when the file is damaged.
void load_masks(const std::filesystem::path& file, TrainStep& step);

// The notes of a checkpoint of a step or an engine. Reads and checks only the header.
struct CheckpointSummary {
  std::int64_t step = 0;
  Notes notes;
};
CheckpointSummary read_summary(const std::filesystem::path& file);

// With Shard::parameters: gives the model on rank 0 its whole weights, for whatever reads them
// there. All ranks must call it; with other shards it does nothing.
void gather_weights(const nn::ModuleBase& model, TrainStep& step);

// The total size of a checkpoint's tensors; the header adds a little.
Bytes checkpoint_bytes(const nn::ModuleBase& model, TrainStep& step);

}  // namespace ebb::io
