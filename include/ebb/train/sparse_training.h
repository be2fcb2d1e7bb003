// Training with masks: a share of the weights is zero, and which ones is learned on the way.
//
// Masks take one bit a weight, as variables of the step's state ("h.0.mlp.fc.weight.mask"): they
// are planned, counted and saved with it. The step itself sets the gradients of dead weights to
// zero, in place. A dead weight is zero and so are its moments, so every optimizer keeps it zero.
// docs/techniques/pruning.md explains the methods.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ebb/masks.h"

namespace ebb {

enum class MaskMethod : std::uint8_t {
  magnitude,  // the smallest |w| die; with a cubic schedule that of Zhu and Gupta (2017)
  movement,  // those that moved towards zero die: Σ w · ∂loss/∂w is largest (Sanh et al. 2020)
  rigl,      // random at first; then the smallest |w| are exchanged for the largest gradients
  fixed,     // masks that are given, such as those of a lottery ticket
};
std::string_view name(MaskMethod method);
MaskMethod mask_method_named(std::string_view name);  // a ValueError lists the names

enum class MaskSchedule : std::uint8_t {
  constant,  // all of the sparsity at once, after step `from`
  cubic,     // sparsity · (1 - (1 - progress)³), from `from` to `until`
};
std::string_view name(MaskSchedule schedule);
MaskSchedule mask_schedule_named(std::string_view name);

struct SparseTraining {
  MaskMethod method = MaskMethod::magnitude;
  MaskSchedule schedule = MaskSchedule::cubic;  // of RigL and fixed masks: constant
  double sparsity = 0.0;                        // share of zeros of each masked weight at the end
  std::optional<Pattern> pattern = {};          // instead: N of every M along the inputs stay
  // Counted in steps taken. Masks change after `from` steps at the earliest, then every `every`
  // steps, and after `until` steps for the last time.
  std::int64_t from = 0, until = 0, every = 100;
  double exchanged = 0.3;  // by RigL: share of live weights at first, falling to 0 as a cosine

  // The share of zeros: `sparsity`, or that of the pattern.
  double target() const;
  // After so many steps: the share of zeros that masks are set to; empty if masks stay.
  std::optional<double> share_after(std::int64_t steps) const;
  // The same for the share of live weights that RigL exchanges.
  std::optional<double> exchange_after(std::int64_t steps) const;
  // A ValueError where the fields contradict each other.
  void check() const;
};

}  // namespace ebb
