// Refuses losses that are not finite as results of verbs that measure a model.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "io/hugging_face/weights.h"

namespace ebb::cli {

// `find` looks for a weight that is not finite and returns its path.
void require_finite_loss(double loss, const std::filesystem::path& model,
                         const std::function<std::optional<std::string>()>& find);

// The first parameter in a folder that is not finite. Reads one at a time; the model's variables
// have no values before and after.
std::optional<std::string> non_finite_weight(const nn::ModuleBase& model,
                                             const io::FolderWeights& weights);

}  // namespace ebb::cli
