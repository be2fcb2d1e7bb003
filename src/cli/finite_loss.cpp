#include "cli/finite_loss.h"

#include <fmt/core.h>

#include <cmath>

#include "cli/outputs.h"
#include "ebb/storage.h"
#include "ebb/train/non_finite.h"

namespace ebb::cli {

void require_finite_loss(double loss, const std::filesystem::path& model,
                         const std::function<std::optional<std::string>()>& find) {
  if (std::isfinite(loss)) return;
  const std::optional<std::string> weight = find();
  throw NotFinite(fmt::format("{}: the loss is {}, {}", model.string(), text_of_non_finite(loss),
                              weight ? fmt::format("because \"{}\" is not finite", *weight)
                                     : "although all weights are finite"));
}

std::optional<std::string> non_finite_weight(const nn::ModuleBase& model,
                                             const io::FolderWeights& weights) {
  for (const nn::NamedVariable& parameter : model.parameters()) {
    weights.load(parameter, model.dtype());
    const auto found = non_finite_variable({parameter}, {});
    parameter.variable.node()->set_storage(nullptr);
    if (found) return found;
  }
  return {};
}

}  // namespace ebb::cli
