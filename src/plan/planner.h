// Makes plans of one graph that differ in their recomputation.
#pragma once

#include <memory>

#include "ebb/plan.h"
#include "plan/lower.h"
#include "plan/recompute/simulation.h"
#include "plan/recompute/step_model.h"
#include "plan/recompute/strategy.h"

namespace ebb::planning {

class Planner {
 public:
  Planner(const Graph& graph, const PlanOptions& options);
  // In this order instead of the scheduled one.
  Planner(const Graph& graph, const Order& order, const PlanOptions& options);

  // Decides by this strategy from now on.
  void use(std::unique_ptr<const Strategy> strategy) { strategy_ = std::move(strategy); }

  const Graph& graph() const { return graph_; }
  const Order& order() const { return order_; }
  const PlanOptions& options() const { return options_; }
  const Lowered& base() const { return base_; }  // without recomputation, not laid out
  const StepModel& model() const { return model_; }
  bool searches() const { return recompute_.mode == Recompute::Mode::automatic; }
  double keep_all_ms() const { return model_.keep_all_ms(); }
  Bytes keep_all_peak() const;  // of the device, without recomputation and before the layout
  Bytes persistent() const;     // memory of the device outside the arena

  // The plan for options().budget, or the smallest budget that can be kept.
  PlanResult run();
  // The runs of a plan for that budget and approximately its time; nothing if only the plan with
  // the smallest peak may keep the budget. Much quicker than making the plan.
  struct Sketch {
    Runs runs;
    double ms;
  };
  std::optional<Sketch> sketch(Bytes budget) const;
  // A plan for that budget, unless only the one with the smallest peak may keep it. `first` is
  // tried before any other: the runs of a sketch for the same budget.
  std::optional<Plan> keep(Bytes budget, std::optional<Runs> first = {}) const;
  // The plan with the smallest peak that is found.
  Plan least();
  // The smallest budget found, at or above the least one, whose plan has at most `fast_overhead`.
  // Only the automatic strategy is searched; for all others the least budget is returned.
  KeptBudget fast(const KeptBudget& least);

  static KeptBudget kept(const Plan& plan) { return {plan.peak, plan.overhead()}; }

 private:
  PlanResult within(Bytes budget);
  Plan least_found();
  Question question(std::int64_t limit) const;
  // The instructions of the runs, with copies started early, and the place of each run in them.
  struct Arranged {
    Lowered lowered;
    std::vector<InstructionId> places;
  };
  Arranged arrange(const Runs& runs, Bytes limit) const;
  Plan realise(Runs runs, Bytes limit, Bytes enough = {}) const;
  // What a plan's layout is searched for: to keep the budget, or to be as small as possible.
  enum class Aim : bool { budget, least };
  Plan realise(Runs runs, Aim aim = Aim::least) const;
  void note(Plan& plan, const Simulation& simulation, int before, int now,
            std::span<const InstructionId> places) const;

  Graph graph_;
  PlanOptions options_;
  Order order_;
  Lowered base_;
  StepModel model_;
  Recompute recompute_;
  std::unique_ptr<const Strategy> strategy_;
  bool transfers_;  // whether the graph has any
};

}  // namespace ebb::planning
