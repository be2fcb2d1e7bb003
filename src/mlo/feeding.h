// The inputs of the program of a level's step: its own batches, and those of the levels it
// differentiates through.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace ebb::mlo {

class Level;

// An update of a level: its k-th last, or the one to come.
struct When {
  Level* level = nullptr;
  std::int64_t ago = to_come;
  static constexpr std::int64_t to_come = -1;
  auto operator<=>(const When&) const = default;
};

// Inputs in order: the tensors of batches, then scalars.
struct Feeding {
  struct Part {  // one batch of an update
    When when;
    std::size_t part = 0;
    auto operator<=>(const Part&) const = default;
  };
  std::vector<Part> batches;
  std::vector<When> updates;  // for each the rate and then the step
};

// For a step of this level with `own` batches of its own. Depends on configs alone.
Feeding feeding_of(Level& level, std::size_t own);
// The levels that hypergradients of this one are differentiated through.
std::vector<Level*> levels_through(const Level& level);

}  // namespace ebb::mlo
