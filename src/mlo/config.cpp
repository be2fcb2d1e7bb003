#include "ebb/mlo/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "ebb/error.h"

namespace ebb::mlo {
namespace {

constexpr std::array<std::string_view, 6> names{"darts", "sama",      "neumann",
                                                "cg",    "reinforce", "unrolled"};

}  // namespace

std::string_view name(Method method) { return names[static_cast<std::size_t>(method)]; }

std::vector<std::string_view> method_names() { return {names.begin(), names.end()}; }

Method method_by_name(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Method>(i);
  throw ValueError(
      fmt::format("there is no method \"{}\"; there are: {}", name, fmt::join(names, ", ")));
}

void check(const Config& c, std::string_view problem) {
  const auto at_least = [&](std::int64_t value, std::int64_t least, std::string_view field) {
    if (value < least)
      throw ValueError(fmt::format("problem \"{}\": {} must be at least {}, but is {}", problem,
                                   field, least, value));
  };
  const auto positive = [&](double value, std::string_view field) {
    if (!(value > 0.0 && std::isfinite(value)))
      throw ValueError(fmt::format("problem \"{}\": {} must be positive and finite, but is {}",
                                   problem, field, value));
  };
  if (c.precision == Precision::fp8)
    throw ValueError(
        fmt::format("problem \"{}\": fp8 is for training on one level, where no level above "
                    "differentiates through a rounded product; split-bf16 goes with several",
                    problem));
  positive(c.initial_dynamic_scale, "initial_dynamic_scale");
  if (!(c.scale_factor > 1.0 && std::isfinite(c.scale_factor)))
    throw ValueError(
        fmt::format("problem \"{}\": scale_factor must be finite and above 1, but is {}", problem,
                    c.scale_factor));
  at_least(c.unroll_steps, 1, "unroll_steps");
  at_least(c.gradient_accumulation, 1, "gradient_accumulation");
  at_least(c.warmup_steps, 0, "warmup_steps");
  at_least(c.neumann_iterations, 0, "neumann_iterations");
  at_least(c.cg_iterations, 1, "cg_iterations");
  positive(c.darts_alpha, "darts_alpha");
  positive(c.sama_adam_alpha, "sama_adam_alpha");
  positive(c.neumann_alpha, "neumann_alpha");
  positive(c.cg_alpha, "cg_alpha");
  positive(c.reinforce_alpha, "reinforce_alpha");
  if (!(c.gradient_clipping >= 0.0 && std::isfinite(c.gradient_clipping)))
    throw ValueError(
        fmt::format("problem \"{}\": gradient_clipping must be finite and not negative, but is {}",
                    problem, c.gradient_clipping));
  if (!(c.reinforce_baseline_decay >= 0.0 && c.reinforce_baseline_decay < 1.0))
    throw ValueError(
        fmt::format("problem \"{}\": reinforce_baseline_decay must be in [0, 1), but is {}",
                    problem, c.reinforce_baseline_decay));
}

void check_below_others(const Config& c, std::string_view problem) {
  if (parameter_dtype(c.precision) != bf16 || c.type == Method::neumann || c.type == Method::cg)
    return;
  throw ValueError(fmt::format(
      "problem \"{}\": in {} levels above can differentiate through it by neumann and cg, but {} "
      "is asked for: {}",
      problem, name(c.precision), name(c.type),
      c.type == Method::unrolled ? "updates that are rounded to bfloat16 have no derivative"
                                 : "differences in parameters would be lost in bfloat16"));
}

}  // namespace ebb::mlo
