#include "plan/recompute/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <unordered_set>

#include "plan/recompute/range_max.h"

namespace ebb {
namespace {

// Moves in one batch must be nearly as good as its best, since scores change with every batch.
constexpr double as_good = 0.7;

// Work is bounded by numbers of simulations, each linear in the step: planning time grows with the
// size of the model, not faster.
constexpr int most_rounds = 400;
constexpr double annealed_events = 1.5e6;
constexpr int most_tries = 20000;

void apply(Holds& holds, const Move& move) {
  for (const auto& [gap, hold] : move.changes) holds[static_cast<std::size_t>(gap)] = hold;
}

}  // namespace

Search::Search(const StepModel& model)
    : model_(model), simulation_(model), finder_(model), kept_(keep_all(model)) {}

double Search::above(std::int64_t target) const {
  double sum = 0.0;
  for (std::int64_t bytes : simulation_.profile())
    sum += static_cast<double>(std::max<std::int64_t>(0, bytes - target));
  return sum;
}

std::int64_t Search::peak_of(const Holds& holds) {
  return simulation_.run(holds) ? simulation_.peak() : std::numeric_limits<std::int64_t>::max();
}
double Search::ms_of(const Holds& holds) {
  return simulation_.run(holds) ? simulation_.ms() : std::numeric_limits<double>::infinity();
}

// The best moves that do not build on each other, as many as the bytes above the target ask for.
std::vector<const Move*> Search::choose(const std::vector<Move>& moves, std::int64_t target,
                                        Batch batch) {
  std::vector<const Move*> chosen;
  RangeMax bytes(simulation_.profile());
  std::unordered_set<int> freed, needed;
  for (const Move& move : moves) {
    if (!chosen.empty() && (batch == Batch::single || move.score < as_good * chosen[0]->score))
      break;
    if (bytes.most(move.after + 1, move.before) <= target) continue;
    if (needed.contains(move.value) ||
        std::any_of(move.sources.begin(), move.sources.end(),
                    [&](int source) { return freed.contains(source); }))
      continue;
    bytes.add(move.after + 1, move.before, -move.bytes);
    for (const Move::Longer& longer : move.longer)
      bytes.add(longer.after + 1, move.before,
                model_.values[static_cast<std::size_t>(longer.value)].bytes);
    freed.insert(move.value);
    needed.insert(move.sources.begin(), move.sources.end());
    chosen.push_back(&move);
  }
  return chosen;
}

// Frees values until the peak is at most `target`; false when nothing helps any more.
bool Search::descend(Holds& holds, std::int64_t target, Batch batch) {
  if (!simulation_.run(holds)) return false;
  std::unordered_set<int> refused;  // gaps whose move did not help from where we stand
  for (int round = 0; round < most_rounds; ++round) {
    if (simulation_.peak() <= target) return true;
    std::vector<Move> moves = finder_.find(simulation_, holds, target);
    std::erase_if(moves, [&](const Move& m) { return refused.contains(m.changes[0].first); });
    std::vector<const Move*> chosen = choose(moves, target, batch);
    const double before = above(target);
    bool helped = false;
    while (!chosen.empty() && !helped) {
      Holds next = holds;
      for (const Move* move : chosen) apply(next, *move);
      helped = simulation_.run(next) && above(target) < before;
      if (helped) {
        holds = std::move(next);
        refused.clear();
      } else {
        if (chosen.size() == 1) refused.insert(chosen[0]->changes[0].first);
        chosen.resize(chosen.size() / 2);
      }
    }
    if (!helped) {
      if (moves.empty() || !simulation_.run(holds)) return false;
    }
  }
  return simulation_.peak() <= target;
}

// Keeps again what the peak has room for: the dearest first.
void Search::take_back(Holds& holds, std::int64_t limit) {
  struct Freed {
    int gap, value, after, before;
    double ms;
  };
  for (int pass = 0; pass < 4; ++pass) {
    if (!simulation_.run(holds)) return;
    std::vector<Freed> freed;
    for (std::size_t v = 0; v < model_.values.size(); ++v) {
      const ModelValue& value = model_.values[v];
      for (std::size_t i = 0; i + 1 < value.positions.size(); ++i) {
        const int gap = value.first_gap + static_cast<int>(i);
        if (holds[static_cast<std::size_t>(gap)] != Hold::keep)
          freed.push_back({gap, static_cast<int>(v), value.positions[i], value.positions[i + 1],
                           model_.steps[static_cast<std::size_t>(value.producer)].ms});
      }
    }
    std::stable_sort(freed.begin(), freed.end(),
                     [](const Freed& a, const Freed& b) { return a.ms > b.ms; });
    RangeMax bytes(simulation_.profile());
    std::vector<Freed> back;
    for (const Freed& f : freed) {
      const std::int64_t size = model_.values[static_cast<std::size_t>(f.value)].bytes;
      if (bytes.most(f.after + 1, f.before) + size > limit) continue;
      bytes.add(f.after + 1, f.before, size);
      back.push_back(f);
    }
    const double before = simulation_.ms();
    bool helped = false;
    while (!back.empty() && !helped) {
      Holds next = holds;
      for (const Freed& f : back) next[static_cast<std::size_t>(f.gap)] = Hold::keep;
      helped = simulation_.run(next) && simulation_.peak() <= limit && simulation_.ms() < before;
      if (helped)
        holds = std::move(next);
      else
        back.resize(back.size() / 2);
    }
    if (!helped) return;
  }
}

// Random single changes, at first also some that make it worse: this is how exchanges come about.
void Search::anneal(Holds& holds, std::int64_t limit, Goal goal) {
  if (!simulation_.run(holds)) return;
  struct Choice {
    int gap;
    bool last;  // the gap after the value's last reader
  };
  std::vector<Choice> choices;
  for (std::size_t v = 0; v < model_.values.size(); ++v) {
    const ModelValue& value = model_.values[v];
    if (!droppable(model_, static_cast<int>(v)) || value.bytes == 0) continue;
    for (std::size_t i = 0; i < value.positions.size(); ++i) {
      const bool last = i + 1 == value.positions.size();
      if (last || value.positions[i + 1] > value.positions[i] + 1)
        choices.push_back({value.first_gap + static_cast<int>(i), last});
    }
  }
  if (choices.empty()) return;
  const int tries = std::min(
      most_tries,
      static_cast<int>(annealed_events / static_cast<double>(simulation_.events().size() + 1)));
  std::mt19937_64 random(20);  // the same plan every time
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const double all_ms = model_.keep_all_ms(), all_bytes = static_cast<double>(peak_of(kept_));
  simulation_.run(holds);
  // Shares of the step's time and of its memory. What is above the limit is paid for, so that the
  // search may pass through it.
  const auto objective = [&] {
    const double ms = simulation_.ms() / all_ms;
    const double bytes = static_cast<double>(simulation_.peak()) / all_bytes;
    if (goal == Goal::memory) return bytes + 0.001 * ms;
    return ms + 4.0 * std::max(0.0, bytes - static_cast<double>(limit) / all_bytes);
  };
  const auto allowed = [&] { return goal == Goal::memory || simulation_.peak() <= limit; };
  double now = objective(), best = now;
  Holds current = holds;
  for (int i = 0; i < tries; ++i) {
    const double heat = 0.02 * (1.0 - static_cast<double>(i) / tries) + 1e-9;
    std::array<std::pair<int, Hold>, 2> undo;
    const std::size_t changes = 1 + below(2);
    for (std::size_t c = 0; c < changes; ++c) {
      const Choice& choice = choices[below(choices.size())];
      Hold& hold = current[static_cast<std::size_t>(choice.gap)];
      undo[c] = {choice.gap, hold};
      if (choice.last)
        hold = hold == Hold::keep ? Hold::free : Hold::keep;
      else
        hold = static_cast<Hold>((static_cast<std::size_t>(hold) + 1 + below(2)) % 3);
    }
    const bool possible = simulation_.run(current);
    const double then = possible ? objective() : 0.0;
    const double chance = static_cast<double>(random() >> 11) * 0x1p-53;
    if (possible && (then <= now || chance < std::exp((now - then) / heat))) {
      now = then;
      if (now < best && allowed()) best = now, holds = current;
    } else {
      for (std::size_t c = changes; c-- > 0;)
        current[static_cast<std::size_t>(undo[c].first)] = undo[c].second;
    }
  }
}

std::optional<Holds> Search::solve(std::int64_t limit, std::span<const Holds> starts) {
  if (peak_of(kept_) <= limit) return kept_;
  std::optional<Holds> best;
  double best_ms = 0.0;
  const auto offer = [&](Holds holds) {
    if (!descend(holds, limit, Batch::many)) return;
    take_back(holds, limit);
    const double ms = ms_of(holds);
    if (!best || ms < best_ms) best = std::move(holds), best_ms = ms;
  };
  offer(kept_);
  for (const Holds& start : starts) offer(start);
  if (!best) return best;
  anneal(*best, limit, Goal::time);
  take_back(*best, limit);
  return best;
}

Holds Search::greedy(std::int64_t limit) {
  Holds holds = kept_;
  descend(holds, limit, Batch::single);
  return holds;
}

Holds Search::least(std::span<const Holds> starts) {
  Holds best = kept_;
  std::int64_t lowest = peak_of(best);
  for (const Holds& start : starts)
    if (const std::int64_t peak = peak_of(start); peak < lowest) best = start, lowest = peak;
  for (double share = 0.08; share > 0.0008;) {
    const std::int64_t target =
        lowest -
        std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(lowest) * share));
    Holds next = best;
    if (descend(next, target, Batch::many))
      best = std::move(next), lowest = peak_of(best);
    else
      share /= 2.0;
  }
  anneal(best, lowest, Goal::memory);
  return best;
}

}  // namespace ebb
