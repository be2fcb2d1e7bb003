// What is said when a budget cannot be kept: the smallest that can, as it is to be typed, and what
// would lower it.
#pragma once

#include <string>
#include <vector>

#include "cli/planning.h"

namespace ebb::cli {

// What a budget is for beside the step itself.
struct Beside {
  Bytes evaluation, fixed = {};  // what evaluation keeps; of the process, with --whole-process
  Bytes resident = {};           // of the process, when that was measured
  Bytes total() const { return evaluation + fixed; }
};

// A way to need less, and a budget of the step that would then do: the smallest that a quick search
// finds.
struct Remedy {
  std::string change;
  Bytes least;
};
// Best first; only what lowers the smallest budget.
std::vector<Remedy> remedies(const workloads::Options& options, const PlanningOptions& planning,
                             CompileOptions compile, Bytes least);

// A text about the whole budget where a step cannot keep its share, `budget`; `kept` are budgets of
// the step that it could.
std::string explained(Bytes budget, LeastBudgets kept, const PlanningOptions& planning,
                      const Beside& beside);

// Plans the step, and says what would help when the budget cannot be kept. What planning
// takes adds to a fixed cost that was measured before.
Plan plan_or_explain(const workloads::Options& options, const PlanningOptions& planning,
                     const Graph& graph, const CompileOptions& compile, const Beside& beside);

}  // namespace ebb::cli
