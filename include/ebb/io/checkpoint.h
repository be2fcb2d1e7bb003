// A training run in one file: weights, buffers, optimizer state, step, schedule and what the caller
// adds as notes (the run's specification, the data's position). It is written whole or not at all,
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

// What is done with the optimizer state of the file.
enum class SavedState : std::uint8_t {
  all,      // it must be exactly what the optimizer keeps
  fitting,  // what has the same name and type is taken; the rest begins anew
  none,     // all of it begins anew, and the optimizer counts its steps from here
};

// Restores model and step, and gives back the notes. Nothing is changed when the file is damaged,
// or when it does not hold exactly the tensors of the model and its optimizer.
Notes load_checkpoint(const std::filesystem::path& file, nn::ModuleBase& model, TrainStep& step,
                      SavedState state = SavedState::all);

// What a checkpoint of a step or an engine says of itself. The header alone is read and checked.
struct CheckpointSummary {
  std::int64_t step = 0;
  Notes notes;
};
CheckpointSummary read_summary(const std::filesystem::path& file);

// The tensors of a checkpoint together; the header adds a little.
Bytes checkpoint_bytes(const nn::ModuleBase& model, TrainStep& step);

}  // namespace ebb::io
