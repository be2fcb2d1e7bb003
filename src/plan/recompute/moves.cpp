#include "plan/recompute/moves.h"

#include <algorithm>
#include <limits>

namespace ebb {
namespace {

constexpr std::size_t longest_chain =
    96;  // of steps run again for one value; longer is never cheap

}  // namespace

MoveFinder::MoveFinder(const StepModel& model) : model_(model) { seen_.resize(model.steps.size()); }

double MoveFinder::weight(int after, int before) const {
  return before - after > 1 ? above_[static_cast<std::size_t>(before)] -
                                  above_[static_cast<std::size_t>(after) + 1]
                            : 0.0;
}

const std::vector<Move>& MoveFinder::find(const Simulation& simulation, const Holds& holds,
                                          std::int64_t target) {
  simulation_ = &simulation;
  const std::size_t steps = model_.steps.size();
  above_.assign(steps + 1, 0.0);
  for (std::size_t t = 0; t < steps; ++t)
    above_[t + 1] = above_[t] + static_cast<double>(
                                    std::max<std::int64_t>(0, simulation.profile()[t] - target));
  event_begin_.assign(steps + 1, 0);
  for (const Event& event : simulation.events())
    ++event_begin_[static_cast<std::size_t>(event.before) + 1];
  for (std::size_t t = 0; t < steps; ++t) event_begin_[t + 1] += event_begin_[t];

  const std::vector<Idle>& idles = simulation.idles();
  idle_begin_.assign(model_.values.size() + 1, 0);
  for (const Idle& idle : idles) ++idle_begin_[static_cast<std::size_t>(idle.value) + 1];
  for (std::size_t v = 0; v < model_.values.size(); ++v) idle_begin_[v + 1] += idle_begin_[v];
  idle_order_.resize(idles.size());
  std::vector<int> next(idle_begin_.begin(), idle_begin_.end() - 1);
  for (std::size_t i = 0; i < idles.size(); ++i)
    idle_order_[static_cast<std::size_t>(next[static_cast<std::size_t>(idles[i].value)]++)] =
        static_cast<int>(i);

  moves_.clear();
  for (const Idle& idle : idles) {
    const double gain = weight(idle.after, idle.before);
    if (gain <= 0.0 || !droppable(model_, idle.value)) continue;
    const ModelValue& value = model_.values[static_cast<std::size_t>(idle.value)];
    const Hold now = holds[static_cast<std::size_t>(idle.gap)];
    const std::size_t position = static_cast<std::size_t>(idle.gap - value.first_gap);
    const bool last_gap = position + 1 == value.positions.size();
    const bool first_stretch = value.positions[position] == idle.after;
    Move best;
    for (bool hold_inputs : {false, true}) {
      Move move;
      move.value = idle.value, move.bytes = value.bytes;
      move.after = idle.after, move.before = idle.before;
      const Hold then = now == Hold::keep && !last_gap && first_stretch ? Hold::stay : Hold::free;
      move.changes.emplace_back(idle.gap, then);
      double ms = 0.0;
      if (!price(move, idle.before, hold_inputs, ms)) continue;
      double freed = static_cast<double>(value.bytes) * gain;
      for (const Move::Longer& longer : move.longer)
        freed -= static_cast<double>(model_.values[static_cast<std::size_t>(longer.value)].bytes) *
                 weight(longer.after, idle.before);
      move.score = freed / std::max(ms, 1e-9);
      if (move.score > best.score) best = std::move(move);
    }
    if (best.score > 0.0) moves_.push_back(std::move(best));
  }
  std::stable_sort(moves_.begin(), moves_.end(),
                   [](const Move& a, const Move& b) { return a.score > b.score; });
  return moves_;
}

bool MoveFinder::present(int value, int step) const {
  const ModelValue& v = model_.values[static_cast<std::size_t>(value)];
  if (v.producer < 0 || !v.in_arena || v.copied_out) return true;
  if (std::binary_search(v.positions.begin(), v.positions.end(), step)) return true;
  for (int i = idle_begin_[static_cast<std::size_t>(value)];
       i < idle_begin_[static_cast<std::size_t>(value) + 1]; ++i) {
    const Idle& idle =
        simulation_->idles()[static_cast<std::size_t>(idle_order_[static_cast<std::size_t>(i)])];
    if (idle.after < step && step <= idle.before) return true;
  }
  for (int e = event_begin_[static_cast<std::size_t>(step)];
       e < event_begin_[static_cast<std::size_t>(step) + 1]; ++e)
    if (simulation_->events()[static_cast<std::size_t>(e)].step == v.producer) return true;
  return false;
}

bool MoveFinder::price(Move& move, int step, bool hold_inputs, double& ms) {
  ++search_;
  stack_.assign(1, model_.values[static_cast<std::size_t>(move.value)].producer);
  seen_[static_cast<std::size_t>(stack_[0])] = search_;
  std::size_t chain = 0;
  bool held = false;
  while (!stack_.empty()) {
    const int s = stack_.back();
    stack_.pop_back();
    const ModelStep& again = model_.steps[static_cast<std::size_t>(s)];
    if (++chain > longest_chain || !again.recomputable || again.valid_until < step) return false;
    ms += again.ms;
    for (int input : again.inputs) {
      if (present(input, step)) {
        move.sources.push_back(input);
        continue;
      }
      const ModelValue& value = model_.values[static_cast<std::size_t>(input)];
      if (hold_inputs && value.positions.back() < step && value.positions.back() >= 0) {
        const int gap = value.first_gap + static_cast<int>(value.positions.size()) - 1;
        const std::pair change{gap, Hold::keep};
        if (std::find(move.changes.begin(), move.changes.end(), change) == move.changes.end()) {
          move.changes.push_back(change);
          move.longer.push_back({input, value.positions.back()});
        }
        held = true;
        continue;
      }
      if (!droppable(model_, input)) return false;
      if (seen_[static_cast<std::size_t>(value.producer)] == search_) continue;
      seen_[static_cast<std::size_t>(value.producer)] = search_;
      stack_.push_back(value.producer);
    }
  }
  return held || !hold_inputs;
}

}  // namespace ebb
