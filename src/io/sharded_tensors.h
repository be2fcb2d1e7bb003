// Tensors that are divided among ranks, one range per rank: gathered on rank 0, and read from
// files.
#pragma once

#include <string>
#include <vector>

#include "ebb/io/safetensors.h"
#include "ebb/train/train_step.h"
#include "train/sharded_state.h"

namespace ebb::io {

// All ranks call it; rank 0 gets the bytes of the whole tensor, the others none.
std::vector<std::byte> gather_ranges_of(const std::string& name, const Variable& range,
                                        const TensorType& whole, const TrainOptions& options);

// Copies a rank's range of an entry into a variable.
void load_own_range(const SafetensorsFile& file, const std::string& name, Variable range, int rank);

}  // namespace ebb::io
