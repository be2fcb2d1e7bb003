// A training run in one file: weights, buffers, optimizer state, step, schedule and what the caller
// adds (the data's position). It is written whole or not at all, and a run resumed from it repeats
// the same bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "ebb/nn/module.h"
#include "ebb/train/train_step.h"

namespace ebb::io {

using Notes = std::map<std::string, std::string>;

void save_checkpoint(const std::filesystem::path& file, const nn::ModuleBase& model,
                     TrainStep& step, const Notes& notes = {});

// Restores model and step, and gives back the notes. Nothing is changed when the file does not fit.
Notes load_checkpoint(const std::filesystem::path& file, nn::ModuleBase& model, TrainStep& step);

}  // namespace ebb::io
