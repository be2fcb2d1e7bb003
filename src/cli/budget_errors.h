// Error texts for a budget that cannot be kept: the smallest budget that can, as it is to be typed,
// and what would lower it.
#pragma once

#include <string>
#include <vector>

#include "cli/planning.h"

namespace ebb::cli {

// What a budget must cover in addition to the step itself.
struct Beside {
  Bytes evaluation, fixed = {};  // what evaluation keeps; of the process, with --whole-process
  Bytes resident = {};           // of the process, if it was measured
  Bytes total() const { return evaluation + fixed; }
};

// A change that needs less memory, and a budget of the step that would then be enough: the smallest
// that a quick search finds.
struct Remedy {
  std::string change;
  Bytes least;
};
// Best first, and only changes that lower the smallest budget.
std::vector<Remedy> remedies(const workloads::Options& options, const PlanningOptions& planning,
                             CompileOptions compile, Bytes least);

// Explains in terms of the whole budget why a step cannot keep its share, `budget`. `kept` are
// budgets of the step that it could keep.
std::string explained(Bytes budget, LeastBudgets kept, const PlanningOptions& planning,
                      const Beside& beside);

// Plans the step. If the budget cannot be kept, the error says what would help. Memory that
// planning takes is added to the fixed cost that was measured before.
Plan plan_or_explain(const workloads::Options& options, const PlanningOptions& planning,
                     const Graph& graph, const CompileOptions& compile, const Beside& beside);

}  // namespace ebb::cli
