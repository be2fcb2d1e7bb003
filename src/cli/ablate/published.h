// What `ebb ablate` does for a workload when nothing else is asked for: which rows, and at which
// sizes.
#pragma once

#include <string>

#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

// Rows as --techniques takes them: each technique alone, useful pairs, ebb's defaults, and all
// together.
std::string study_rows(const std::string& workload);

// Fills in the sizes that are not given. On a GPU they are those of the published studies: needle's
// language model, BERT-base on texts of 512 tokens, Betty's reweighting of ResNet-50, GPT-2. On the
// CPU they are small enough for a whole study in about two minutes.
void fill_in_sizes(workloads::MultilevelOptions& options);

}  // namespace ebb::cli
