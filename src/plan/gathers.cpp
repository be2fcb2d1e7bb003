#include "plan/gathers.h"

#include <functional>
#include <unordered_map>

#include "ops/collective/collective.h"
#include "ops/leaf/leaf.h"

namespace ebb::planning {

Gathers find_gathers(const Order& order) {
  Gathers gathers;
  for (const auto& node : order) {
    if (&node->op() != &all_gather_op()) continue;
    std::vector<const Node*> chain{node.get()};
    const Node* at = node->inputs()[0].node().get();
    while (at->inputs().size() == 1 && !is_collective(at->op()))
      chain.push_back(at), at = at->inputs()[0].node().get();
    if (&at->op() == &variable_op()) gathers.insert(chain.begin(), chain.end());
  }
  for (const auto& node : order)
    if (node->op().is_view() && !gathers.contains(node.get()) &&
        gathers.contains(node->inputs()[0].node().get()))
      gathers.insert(node.get());
  return gathers;
}

Order gather_late(const Order& order, const Gathers& gathers) {
  if (gathers.empty()) return order;
  Order result;
  Gathers waiting = gathers;
  const std::function<void(const std::shared_ptr<Node>&)> emit = [&](const auto& node) {
    for (const Tensor& input : node->inputs())
      if (waiting.erase(input.node().get()) > 0) emit(input.node());
    result.push_back(node);
  };
  for (const auto& node : order)
    if (!gathers.contains(node.get())) emit(node);
  // Adds the gathers that nothing in the order reads: results of the graph.
  for (const auto& node : order)
    if (waiting.erase(node.get()) > 0) emit(node);
  return result;
}

namespace {

class GatherAgain {
 public:
  explicit GatherAgain(const Question& question) : plan_(question.plan), model_(question.model) {
    for (std::size_t v = 0; v < model_.values.size(); ++v) {
      std::vector<int> steps;
      if (droppable(model_, static_cast<int>(v)) && chain(model_.values[v].producer, steps))
        chains_[static_cast<int>(v)] = std::move(steps);
    }
  }
  bool any() const { return !chains_.empty(); }

  Runs run(const Runs& runs) {
    Runs result;
    double now = 0.0;                             // ms of the runs so far
    int furthest = -1;                            // step
    std::unordered_map<int, double> last_needed;  // by value: when it was made or read last
    const auto add = [&](int step) {
      result.push_back(step);
      now += model_.steps[static_cast<std::size_t>(step)].ms;
      for (const int output : model_.steps[static_cast<std::size_t>(step)].outputs)
        if (chains_.contains(output)) last_needed[output] = now;
    };
    for (const int step : runs) {
      for (const int input : model_.steps[static_cast<std::size_t>(step)].inputs) {
        const auto found = chains_.find(input);
        if (found == chains_.end()) continue;
        const auto ms_and_until = price(found->second);
        if (now - last_needed[input] > ms_and_until.first && furthest < ms_and_until.second)
          for (const int again : found->second) add(again);
      }
      furthest = std::max(furthest, step);
      add(step);
      for (const int input : model_.steps[static_cast<std::size_t>(step)].inputs)
        if (chains_.contains(input)) last_needed[input] = now;
    }
    Simulation simulation(model_);
    return simulation.run(result) ? result : runs;
  }

 private:
  // The steps that gather the result of `step` from a variable, in order; false if it does not.
  bool chain(int step, std::vector<int>& steps) const {
    const ModelStep& s = model_.steps[static_cast<std::size_t>(step)];
    const bool gathers = plan_.instructions[InstructionId(step)].op == &all_gather_op();
    if (!s.recomputable || s.inputs.size() > 1 || (steps.empty() && !gathers)) return false;
    steps.insert(steps.begin(), step);
    if (s.inputs.empty()) return true;
    const int source = model_.values[static_cast<std::size_t>(s.inputs.front())].producer;
    return source >= 0 && chain(source, steps);
  }

  // The time of these steps, and the step from which on they can no longer run.
  std::pair<double, int> price(const std::vector<int>& steps) const {
    std::pair<double, int> result{0.0, static_cast<int>(model_.steps.size())};
    for (const int step : steps) {
      result.first += model_.steps[static_cast<std::size_t>(step)].ms;
      result.second =
          std::min(result.second, model_.steps[static_cast<std::size_t>(step)].valid_until);
    }
    return result;
  }

  const Plan& plan_;
  const StepModel& model_;
  std::unordered_map<int, std::vector<int>> chains_;  // by value
};

}  // namespace

Runs gather_again(const Question& question, Runs runs) {
  GatherAgain gathers(question);
  return gathers.any() ? gathers.run(runs) : runs;
}

}  // namespace ebb::planning
