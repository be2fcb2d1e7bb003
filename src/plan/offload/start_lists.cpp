#include "plan/offload/start_lists.h"

#include <unordered_map>
#include <utility>

#include "ops/transfer/transfer.h"
#include "plan/recompute/search.h"

namespace ebb::planning {
namespace {

// A copy that was fetched so many runs ago is fetched again for a step that is recomputed.
constexpr std::size_t long_ago = 48;

class FromLists : public Strategy {
 public:
  explicit FromLists(std::vector<Runs> lists) : lists_(std::move(lists)) {}
  std::string_view name() const override { return "auto"; }

  Runs decide(const Question& q) const override {
    return Search(q.model, Effort::quick).nearest(q.limit, lists_);
  }

 private:
  std::vector<Runs> lists_;
};

// Carries lists of runs over to a step with copies in it.
class CarryOver {
 public:
  CarryOver(const Planner& resident, const OrderedGraph& made, const Planner& planner)
      : model_(planner.model()) {
    std::unordered_map<const Node*, std::size_t> old;  // steps
    for (std::size_t s = 0; s < resident.base().nodes.size(); ++s)
      old[resident.base().nodes[s].get()] = s;
    const auto& nodes = planner.base().nodes;
    steps_.resize(resident.model().steps.size(), -1);
    const auto graph_steps = static_cast<std::size_t>(model_.graph_steps);
    for (std::size_t s = 0; s < graph_steps; ++s)
      if (const auto origin = made.origins.find(nodes[s].get()); origin != made.origins.end())
        steps_[old.at(origin->second)] = static_cast<int>(s);
    // Copies into variables at the end of the step.
    std::size_t at = static_cast<std::size_t>(resident.model().graph_steps);
    for (std::size_t s = graph_steps; s < model_.steps.size() && at < steps_.size(); ++s)
      steps_[at++] = static_cast<int>(s);
    find_transfers(planner.base().plan);
  }

  Runs operator()(const Runs& list) const {
    Runs result;
    std::vector<std::size_t> emitted(model_.steps.size(), 0);  // where it ended, plus 1
    const auto emit = [&](int step) {
      result.push_back(step);
      emitted[static_cast<std::size_t>(step)] = result.size();
    };
    for (const int run : list) {
      const int step = steps_[static_cast<std::size_t>(run)];
      if (step < 0) continue;
      const bool first = emitted[static_cast<std::size_t>(step)] == 0;
      for (const int fetch : fetches_[static_cast<std::size_t>(step)]) {
        const std::size_t last = emitted[static_cast<std::size_t>(fetch)];
        if (last == 0 || (!first && last + long_ago < result.size())) emit(fetch);
      }
      emit(step);
      if (first)
        for (const int store : stores_[static_cast<std::size_t>(step)]) emit(store);
    }
    return result;
  }

 private:
  // The fetches that a step reads, and the stores that read what it makes.
  void find_transfers(const Plan& plan) {
    fetches_.resize(model_.steps.size());
    stores_.resize(model_.steps.size());
    for (const InstructionId i : plan.instructions.ids()) {
      const Instruction& instruction = plan.instructions[i];
      for (const Operand& input : instruction.inputs) {
        const InstructionId maker = plan.values[input.value].maker;
        if (!maker) continue;
        if (plan.instructions[maker].op == &fetch_op())
          fetches_[i.index()].push_back(maker.number());
        if (instruction.op == &store_op()) stores_[maker.index()].push_back(i.number());
      }
    }
  }

  const StepModel& model_;
  std::vector<int> steps_;                          // with copies, by those without
  std::vector<std::vector<int>> fetches_, stores_;  // by step
};

}  // namespace

StartLists::StartLists(const Planner& resident) : resident_(resident) {
  Search search(resident.model(), Effort::quick);
  lists_ = search.ladder();
  for (Runs& start : hand_made({resident.base().plan, resident.model(), 0, Effort::quick}))
    lists_.push_back(std::move(start));
}

std::unique_ptr<const Strategy> StartLists::strategy(const OrderedGraph& made,
                                                     const Planner& planner) const {
  const CarryOver carry_over(resident_, made, planner);
  std::vector<Runs> lists;
  for (const Runs& list : lists_) lists.push_back(carry_over(list));
  return std::make_unique<FromLists>(std::move(lists));
}

}  // namespace ebb::planning
