#include "ebb/train/sparse_training.h"

#include <fmt/core.h>

#include <cmath>
#include <numbers>
#include <span>
#include <string>

#include "ebb/error.h"

namespace ebb {
namespace {

constexpr std::string_view method_names[] = {"magnitude", "movement", "rigl", "fixed"};
constexpr std::string_view schedule_names[] = {"constant", "cubic"};

template <class Enum>
Enum named(std::string_view given, std::span<const std::string_view> names, const char* what) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == given) return static_cast<Enum>(i);
    all += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  throw ValueError(fmt::format("{} is one of {}, but \"{}\" came", what, all, given));
}

}  // namespace

std::string_view name(MaskMethod method) { return method_names[static_cast<std::size_t>(method)]; }
std::string_view name(MaskSchedule schedule) {
  return schedule_names[static_cast<std::size_t>(schedule)];
}
MaskMethod mask_method_named(std::string_view name) {
  return named<MaskMethod>(name, method_names, "a method of masks");
}
MaskSchedule mask_schedule_named(std::string_view name) {
  return named<MaskSchedule>(name, schedule_names, "a schedule of masks");
}

double SparseTraining::target() const {
  if (!pattern) return sparsity;
  return 1.0 - static_cast<double>(pattern->kept) / static_cast<double>(pattern->of);
}

std::optional<double> SparseTraining::share_after(std::int64_t steps) const {
  if (method == MaskMethod::fixed) return {};
  if (schedule == MaskSchedule::constant)
    return steps == from ? std::optional(target()) : std::nullopt;
  if (steps <= from || steps > until) return {};
  if (steps == until) return target();
  if ((steps - from) % every != 0) return {};
  const double left = 1.0 - static_cast<double>(steps - from) / static_cast<double>(until - from);
  return target() * (1.0 - left * left * left);
}

std::optional<double> SparseTraining::exchange_after(std::int64_t steps) const {
  if (method != MaskMethod::rigl || steps == 0 || steps >= until || steps % every != 0) return {};
  const double progress = static_cast<double>(steps) / static_cast<double>(until);
  return exchanged / 2.0 * (1.0 + std::cos(std::numbers::pi * progress));
}

void SparseTraining::check() const {
  const auto fail = [](const std::string& what) { throw ValueError("SparseTraining: " + what); };
  if (method == MaskMethod::fixed) {
    if (schedule != MaskSchedule::constant || sparsity != 0.0 || pattern)
      fail("fixed masks have neither sparsity nor pattern, and a constant schedule");
    return;
  }
  if (pattern && (pattern->kept < 1 || pattern->kept >= pattern->of || pattern->of > 64))
    fail(fmt::format("a pattern keeps N of every M, with 0 < N < M ≤ 64, but is {}:{}",
                     pattern->kept, pattern->of));
  if (pattern && sparsity != 0.0) fail("sparsity and a pattern both say how much is zero");
  if (!pattern && !(sparsity > 0.0 && sparsity < 1.0))
    fail(fmt::format("sparsity must be greater than 0 and less than 1, but is {}", sparsity));
  if (every < 1)
    fail(fmt::format("the steps between two changes of the masks must be at least 1, but are {}",
                     every));
  if (from < 0) fail(fmt::format("masks change after {} steps, which is before the first", from));
  const bool grows = method == MaskMethod::rigl;
  if (grows && schedule != MaskSchedule::constant)
    fail("RigL's sparsity is constant: it exchanges weights");
  if (grows && pattern) fail("RigL exchanges weights of a whole tensor, not in a pattern");
  if (grows && from != 0) fail("RigL's masks are there from the first step on");
  if (grows && !(exchanged > 0.0 && exchanged < 1.0))
    fail(fmt::format(
        "the share that RigL exchanges must be greater than 0 and less than 1, but is {}",
        exchanged));
  if ((grows || schedule == MaskSchedule::cubic) && until <= from)
    fail(fmt::format("the last change, after {} steps, must come after step {}", until, from));
  if (method == MaskMethod::movement && schedule == MaskSchedule::constant && from == 0)
    fail("before the first step no weight has moved: movement needs `from` or a cubic schedule");
}

}  // namespace ebb
