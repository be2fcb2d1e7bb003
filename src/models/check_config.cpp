#include "models/check_config.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "ebb/error.h"

namespace ebb::models {
namespace {

constexpr std::int64_t largest_size = std::numeric_limits<std::int32_t>::max(),
                       most_blocks = 100'000;

void check_between(std::string_view model, const SizeField& field, std::int64_t most) {
  if (field.value < 1 || field.value > most)
    throw ValueError(fmt::format("{}: {} must be between 1 and {}, but is {}", model, field.name,
                                 most, field.value));
}

}  // namespace

void check_sizes(std::string_view model, std::initializer_list<SizeField> sizes) {
  for (const SizeField& field : sizes) check_between(model, field, largest_size);
}

int block_count(std::string_view model, std::int64_t layers) {
  check_between(model, {"layers", layers}, most_blocks);
  return static_cast<int>(layers);
}

void check_heads(std::string_view model, std::int64_t width, std::int64_t heads,
                 std::int64_t groups) {
  check_sizes(model, {{"width", width}, {"heads", heads}, {"key_value_heads", groups}});
  if (width % heads != 0)
    throw ValueError(
        fmt::format("{}: a width of {} does not divide into {} heads", model, width, heads));
  if (heads % groups != 0)
    throw ValueError(
        fmt::format("{}: {} heads do not divide into {} groups, one for each "
                    "head of keys and values",
                    model, heads, groups));
}

void check_dropout(std::string_view model, double probability) {
  if (!(probability >= 0.0 && probability < 1.0))
    throw ValueError(
        fmt::format("{}: dropout must be at least 0 and below 1, but is {}", model, probability));
}

void check_not_negative(std::string_view model, std::string_view field, double value) {
  if (!(value >= 0.0 && std::isfinite(value)))
    throw ValueError(
        fmt::format("{}: {} must be at least 0 and finite, but is {}", model, field, value));
}

void check_positive(std::string_view model, std::string_view field, double value) {
  if (!(value > 0.0 && std::isfinite(value)))
    throw ValueError(
        fmt::format("{}: {} must be positive and finite, but is {}", model, field, value));
}

}  // namespace ebb::models
