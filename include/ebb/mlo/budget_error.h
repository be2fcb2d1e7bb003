// The error of a level that cannot keep its budget.
#pragma once

#include <string>

#include "ebb/plan.h"

namespace ebb::mlo {

// Thrown if Config::budget, the limit for all memory in use while the level runs, cannot be kept.
class LevelBudgetError : public MemoryError {
 public:
  LevelBudgetError(std::string problem, Bytes budget, const LeastBudgets& kept);
  std::string problem;
  Bytes budget;
  LeastBudgets kept;  // the smallest budget of this level that can be kept, and a fast one
};

}  // namespace ebb::mlo
