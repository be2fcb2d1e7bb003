#include "plan/recompute/search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "plan/recompute/kicks.h"
#include "plan/recompute/range_max.h"

namespace ebb::planning {
namespace {

// A batch contains only moves with at least this share of the best score, since scores change after
// each batch.
constexpr double as_good = 0.7;

// The most places by which `reorder` moves a run.
constexpr int nearby = 4;

// Limits of the search: numbers of rounds and kicks, and work, counted in simulated runs. They keep
// planning time at most linear in the size of the model.
constexpr int most_rounds = 400;
constexpr double lowest_work_a_step = 8000.0, most_lowest_work = 5e6, quick_lowest_work = 1e6;
constexpr double ladder_work = 2e6, nearest_work = 4e5;
constexpr double exchange_work = 3e6;
constexpr double wander_work = 5e5, least_wander_work = 3e6;
constexpr int most_kicks = 1000;

// After more than `patience` kicks without improvement the search continues from another list. A
// list becomes the next one to kick if it takes less than `tolerance` times as long as the current
// one.
constexpr int patience = 15;
constexpr double tolerance = 1.03;

// The indices of recomputations: runs of steps that have run before.
std::vector<int> repeated(const StepModel& model, const Runs& runs) {
  std::vector<int> result;
  std::vector<char> done(model.steps.size());
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (std::exchange(done[static_cast<std::size_t>(runs[r])], 1))
      result.push_back(static_cast<int>(r));
  return result;
}

Runs without(Runs runs, std::span<const int> taken) {
  for (int r : taken) runs[static_cast<std::size_t>(r)] = -1;
  std::erase(runs, -1);
  return runs;
}

}  // namespace

Search::Search(const StepModel& model, Effort effort)
    : model_(model),
      effort_(effort),
      simulation_(model),
      finder_(simulation_),
      kept_(keep_all(model)) {
  simulation_.run(kept_);
}

bool Search::simulate(Runs& runs) {
  work_ += static_cast<double>(runs.size());
  return simulation_.run(runs);
}

std::int64_t Search::peak_of(Runs runs) {
  return simulate(runs) ? simulation_.peak() : std::numeric_limits<std::int64_t>::max();
}
double Search::ms_of(Runs runs) {
  return simulate(runs) ? simulation_.ms() : std::numeric_limits<double>::infinity();
}

// The sum of `above` over `runs`, which must have been simulated last.
double Search::excess(const Runs& runs, std::int64_t target) const {
  const std::vector<double> bytes = above(simulation_, runs, target);
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

// The best moves that do not depend on one another, as many as reaching the target takes.
std::vector<const Move*> Search::choose(const std::vector<const Move*>& moves, std::int64_t target,
                                        Batch batch) {
  const auto copy = [&](int c) -> const Copy& {
    return simulation_.copies()[static_cast<std::size_t>(c)];
  };
  const auto size = [&](int c) {
    return model_.values[static_cast<std::size_t>(copy(c).value)].bytes;
  };
  std::vector<const Move*> chosen;
  RangeMax bytes(simulation_.profile());
  std::unordered_set<int> freed, needed;  // copies
  for (const Move* move : moves) {
    if (!chosen.empty() && (batch == Batch::single || move->score < as_good * chosen[0]->score))
      break;
    if (bytes.most(move->after + 1, move->before) <= target) continue;
    if (needed.contains(move->copy) ||
        std::any_of(move->sources.begin(), move->sources.end(),
                    [&](int source) { return freed.contains(source); }))
      continue;
    bytes.add(move->after + 1, move->before, -size(move->copy));
    for (int longer : move->longer) bytes.add(copy(longer).last + 1, move->before, size(longer));
    freed.insert(move->copy);
    needed.insert(move->sources.begin(), move->sources.end());
    chosen.push_back(move);
  }
  return chosen;
}

// Frees values until the peak is at most `target`. Returns false if no move helps any more or work
// reaches `enough`. A move that does not reduce the excess is refused from then on; refused moves
// are tried again when no others are left.
bool Search::descend(Runs& runs, std::int64_t target, Batch batch, std::set<Name> refused,
                     double enough) {
  if (!simulate(runs)) return false;
  const auto name = [&](const Move* move) {
    return Name{simulation_.copies()[static_cast<std::size_t>(move->copy)].value,
                runs[static_cast<std::size_t>(move->before)]};
  };
  bool again = !refused.empty();  // whether refused moves may be tried again
  const int rounds = batch == Batch::many ? most_rounds : static_cast<int>(2 * runs.size());
  for (int round = 0; round < rounds && work_ < enough && simulation_.peak() > target; ++round) {
    std::vector<const Move*> moves = finder_.find(runs, target);
    std::erase_if(moves, [&](const Move* move) { return refused.contains(name(move)); });
    std::vector<const Move*> chosen = choose(moves, target, batch);
    if (chosen.empty()) {
      const bool helped = reorder(runs, target);
      if (!helped && !again) return false;
      if (!helped) refused.clear();
      again = helped;
      continue;
    }
    const double before = excess(runs, target);
    const Name best = name(chosen[0]);
    for (bool helped = false; !helped && !chosen.empty(); chosen.resize(chosen.size() / 2)) {
      Runs next = applied(runs, chosen);
      helped = simulate(next) && excess(next, target) < before;
      if (helped) runs = std::move(next), again = true;
      if (!helped && chosen.size() == 1) refused.insert(best), simulate(runs);
    }
  }
  return simulation_.peak() <= target;
}

// Moves the run with the highest memory by a few places, or a neighbour across it. Returns whether
// that has reduced the excess.
bool Search::reorder(Runs& runs, std::int64_t target) {
  const std::vector<std::int64_t>& profile = simulation_.profile();
  const int fullest =
      static_cast<int>(std::max_element(profile.begin(), profile.end()) - profile.begin());
  const double before = excess(runs, target);
  const auto move = [&](int from, int to) {
    const int count = static_cast<int>(runs.size());
    if (std::min(from, to) < 0 || std::max(from, to) >= count) return false;
    Runs next = runs;
    const auto at = [&](int r) { return next.begin() + r; };
    if (from < to)
      std::rotate(at(from), at(from + 1), at(to + 1));
    else
      std::rotate(at(to), at(from), at(from + 1));
    if (!simulate(next) || excess(next, target) >= before) return false;
    runs = std::move(next);
    return true;
  };
  for (int by = 1; by <= nearby; ++by)
    if (move(fullest, fullest - by) || move(fullest, fullest + by) || move(fullest + by, fullest) ||
        move(fullest - by, fullest))
      return true;
  simulate(runs);
  return false;
}

// Recomputations that can all be removed within the limit, by estimate; the most expensive are
// considered first.
std::vector<int> Search::fitting(const Runs& runs, std::int64_t limit) {
  const auto step = [&](int r) -> const ModelStep& {
    return model_.steps[static_cast<std::size_t>(runs[static_cast<std::size_t>(r)])];
  };
  std::vector<int> run_before(runs.size()), last_run(model_.steps.size(), -1);
  for (std::size_t r = 0; r < runs.size(); ++r)
    run_before[r] = std::exchange(last_run[static_cast<std::size_t>(runs[r])], static_cast<int>(r));
  std::vector<int> candidates = repeated(model_, runs);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](int a, int b) { return step(a).ms > step(b).ms; });
  std::vector<int> result;
  RangeMax bytes(simulation_.profile());
  for (int r : candidates) {
    // Without run r, the outputs of the step's previous run are kept until r: calls function(first
    // run of the extension, bytes) for each of them.
    const auto for_held = [&](const auto& function) {
      const int before = simulation_.first_made(run_before[static_cast<std::size_t>(r)]);
      for (int o = 0; o < static_cast<int>(step(r).outputs.size()); ++o) {
        const Copy& now =
            simulation_.copies()[static_cast<std::size_t>(simulation_.first_made(r) + o)];
        if (now.last > r)
          function(simulation_.copies()[static_cast<std::size_t>(before + o)].last + 1,
                   model_.values[static_cast<std::size_t>(now.value)].bytes);
      }
    };
    bool fits = true;
    for_held([&](int from, std::int64_t size) { fits &= bytes.most(from, r) + size <= limit; });
    if (!fits) continue;
    for_held([&](int from, std::int64_t size) { bytes.add(from, r, size); });
    result.push_back(r);
  }
  return result;
}

// Removes recomputations that the limit does not require.
void Search::take_back(Runs& runs, std::int64_t limit) {
  for (bool helped = true; helped && simulate(runs);) {
    const double before = simulation_.ms();
    std::vector<int> taken = fitting(runs, limit);
    helped = false;
    for (; !helped && !taken.empty(); taken.resize(taken.size() / 2)) {
      Runs next = without(runs, taken);
      helped = simulate(next) && simulation_.peak() <= limit && simulation_.ms() < before;
      if (helped) runs = std::move(next);
    }
  }
}

Search::Found Search::found(Runs runs, std::int64_t limit) {
  simulate(runs);
  const std::int64_t above = std::max(limit, simulation_.peak());
  if (above == limit) take_back(runs, limit);
  const double ms = ms_of(runs);
  return {std::move(runs), above, ms};
}

// Removes one recomputation, replaces it by others through a descent, and keeps the result if it is
// faster; repeats until no exchange helps or the work is done.
Search::Found Search::exchange(Found best, std::int64_t limit) {
  const double enough = work_ + exchange_work;
  std::vector<int> again = repeated(model_, best.runs);
  for (std::size_t i = 0, in_vain = 0; in_vain < again.size() && work_ < enough; ++in_vain) {
    i = i == 0 ? again.size() - 1 : i - 1;
    const auto here = best.runs.begin() + again[i];
    const std::vector<int>& outputs = model_.steps[static_cast<std::size_t>(*here)].outputs;
    const auto reader = std::find_if(here, best.runs.end(), [&](int step) {
      const std::vector<int>& inputs = model_.steps[static_cast<std::size_t>(step)].inputs;
      return std::find_first_of(inputs.begin(), inputs.end(), outputs.begin(), outputs.end()) !=
             inputs.end();
    });
    std::set<Name> refused;
    for (int output : outputs) refused.insert({output, *reader});
    Runs runs = without(best.runs, {&again[i], 1});
    descend(runs, limit, Batch::many, std::move(refused));
    if (Found next = found(std::move(runs), limit); next < best) {
      best = std::move(next);
      again = repeated(model_, best.runs);
      i = std::min(i, again.size());
      in_vain = 0;
    }
  }
  return best;
}

// Iterated local search: changes the list at random and descends again, over and over.
Search::Found Search::wander(Found best, std::int64_t limit, double work) {
  Kicks kick(simulation_);
  Found current = best;
  const Found all = found(kept_, limit);
  const double enough = work_ + work;
  for (int i = 0, in_vain = 0; i < most_kicks && work_ < enough; ++i) {
    Runs runs = kick(current.runs);
    descend(runs, std::max(limit, best.above - best.above / 200 - 1), Batch::many);
    Found next = found(std::move(runs), limit);
    in_vain = next < current ? 0 : in_vain + 1;
    if (next < best) best = next;
    if (next.above < current.above ||
        (next.above == current.above && next.ms < tolerance * current.ms))
      current = std::move(next);
    if (in_vain > patience) current = i % 2 == 0 ? all : best, in_vain = 0;
  }
  return best;
}

std::optional<Runs> Search::solve(std::int64_t limit, std::span<const Runs> starts) {
  if (peak_of(kept_) <= limit) return kept_;
  Found best = found(kept_, limit);
  const auto offer_descent = [&](Runs runs) {
    descend(runs, limit, Batch::many);
    best = std::min(best, found(std::move(runs), limit));
  };
  offer_descent(kept_);
  for (const Runs& start : starts) offer_descent(start);
  if (best.above > limit) best = std::min(best, lowest(limit, starts));
  const bool thorough = effort_ == Effort::thorough;
  if (best.above > limit && thorough) best = wander(std::move(best), limit, least_wander_work);
  if (best.above > limit) return {};
  if (thorough) best = wander(exchange(std::move(best), limit), limit, wander_work);
  return std::move(best.runs);
}

std::vector<Runs> Search::ladder() {
  std::vector<Runs> rungs{kept_};
  const double enough = work_ + ladder_work;
  std::int64_t peak = peak_of(kept_);
  for (double share = 0.08; share > 0.01 && work_ < enough;) {
    const std::int64_t target = peak - static_cast<std::int64_t>(share * static_cast<double>(peak));
    Runs runs = rungs.back();
    if (!descend(runs, target, Batch::many, {}, enough)) {
      share /= 2.0;
      continue;
    }
    rungs.push_back(found(std::move(runs), target).runs);
    peak = target;
  }
  return rungs;
}

Runs Search::nearest(std::int64_t limit, std::span<const Runs> lists) {
  if (peak_of(kept_) <= limit) return kept_;
  Found best{kept_, std::numeric_limits<std::int64_t>::max(), 0.0}, above = best;
  for (const Runs& list : lists) {
    Runs runs = list;
    if (!simulate(runs)) continue;
    const Found one{std::move(runs), std::max(limit, simulation_.peak()), simulation_.ms()};
    Found& kind = one.above > limit ? above : best;
    if (one < kind) kind = one;
  }
  if (best.above == limit) best = found(std::move(best.runs), limit);
  if (above.above < std::numeric_limits<std::int64_t>::max()) {
    const double enough = work_ + nearest_work;
    descend(above.runs, limit, Batch::many, {}, enough);
    above = found(std::move(above.runs), limit);
    if (best.above > limit) above = lowered(std::move(above), limit, enough);
    best = std::min(best, above);
  }
  return std::move(best.runs);
}

Runs Search::greedy(std::int64_t limit) {
  Runs runs = kept_;
  descend(runs, limit, Batch::single);
  return runs;
}

// Lowers the peak until the limit is kept, by 8 % of the peak at a time; whenever a descent fails,
// the percentage is halved. Each descent starts from the best list so far. With `start`, each
// starts from there and the first asks for half of the peak: so low a target frees values that no
// sequence of small steps would.
Search::Found Search::lowered(Found best, std::int64_t limit, double enough, const Runs* start) {
  for (double share = start ? 0.5 : 0.08; share > 0.0008 && best.above > limit && work_ < enough;) {
    Runs runs = start ? *start : best.runs;
    const double less = std::max(1.0, static_cast<double>(best.above) * share);
    const std::int64_t target = std::max(limit, best.above - static_cast<std::int64_t>(less));
    const bool reached = descend(runs, target, Batch::many, {}, enough);
    if (!reached) share /= 2.0;
    if (reached || start) best = std::min(best, found(std::move(runs), limit));
  }
  return best;
}

// Lowers the peak from every start. The starts with the lowest peaks come first, since work is
// bounded.
Search::Found Search::lowest(std::int64_t limit, std::span<const Runs> starts) {
  const double thorough =
      std::min(most_lowest_work, lowest_work_a_step * static_cast<double>(model_.steps.size()));
  const double enough = work_ + (effort_ == Effort::thorough ? thorough : quick_lowest_work);
  std::vector<std::pair<std::int64_t, const Runs*>> order{{peak_of(kept_), &kept_}};
  for (const Runs& start : starts) order.emplace_back(peak_of(start), &start);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Found best = found(*order[0].second, limit);
  for (const auto& [peak, start] : order)
    best = std::min(best, lowered(found(*start, limit), limit, enough));
  for (const auto& [peak, start] : order) best = lowered(std::move(best), limit, enough, start);
  return lowered(std::move(best), limit, enough);
}

Runs Search::least(std::span<const Runs> starts) {
  Found best = lowest(0, starts);
  if (effort_ == Effort::thorough) best = wander(std::move(best), 0, least_wander_work);
  return std::move(best.runs);
}

}  // namespace ebb::planning
