// Options of training with masks of weights (ebb/train/sparse_training.h).
#pragma once

#include <optional>
#include <span>

#include "cli/options.h"
#include "ebb/train/sparse_training.h"
#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// Adds --sparsity, --sparsity-pattern, --sparsity-method, --sparsity-schedule, --sparsity-from,
// --sparsity-until and --sparsity-every.
void add_sparsity_options(CLI::App& app, workloads::SparsityOptions& options);

// Adds --sparsity-masks, for a verb that trains.
void add_masks_option(CLI::App& app, workloads::SparsityOptions& options);

// The requested training with masks; empty if none is requested. A usage error if the options
// contradict each other.
std::optional<SparseTraining> sparse_training(const workloads::SparsityOptions& options);

// The names of all these options, without dashes.
std::span<const char* const> sparsity_option_names();

}  // namespace ebb::cli
