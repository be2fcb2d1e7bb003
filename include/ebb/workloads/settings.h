// Which of their options workloads use. One table decides it, for the library and for the command
// line: an option that would have no effect is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/workloads/multilevel.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

enum class Setting : std::uint8_t {
  layers,
  width,
  hidden,
  heads,
  key_value_heads,
  vocabulary,
  sequence,
  classes,
  depth,
  dropout,
  layout,
  pack,
  lora,
  lora_alpha,
  lora_dropout,
  lora_modules,
  adapter,
  base,
  merge,
  fused_loss,  // false: the loss is computed from all logits
  tokens,
  labels_from,
  image_size,
};
inline constexpr int setting_count = 23;
std::string_view name(Setting setting);  // that of the field of Options

// Whether the workload, with these options and this data, reads the setting.
bool uses(const Options& options, Setting setting);
bool uses(const MultilevelOptions& options, Setting setting);

// Workloads of either kind that use the setting, at least with some of their data.
std::vector<std::string> users_of(Setting setting);

// The first setting that is given and has no effect.
struct Misfit {
  Setting setting;
  std::string why;  // "does not apply to mlp; it is for lm, gpt2"
};
std::optional<Misfit> misfit(const Options& options);
std::optional<Misfit> misfit(const MultilevelOptions& options);

// What is wrong with an option of a level that has no effect, because it belongs to another method
// or because no level is above this one. Empty if every option has an effect.
std::optional<std::string> level_misfit(const MultilevelOptions& options);

}  // namespace ebb::workloads
