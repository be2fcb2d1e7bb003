// How well the planner chooses what to recompute: compared with the true optimum on small steps,
// and with simpler rules and known bounds on larger ones.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "plan/recompute/search.h"
#include "support/exact_recompute.h"
#include "support/random_step_model.h"
#include "support/sanitizers.h"

namespace ebb::test {
namespace {

using namespace planning;

// ---- The reference itself ----

// All lists of runs that take less than `limit_ms` and contain no unneeded run, found by trying
// every step after every other.
class EveryList {
 public:
  EveryList(const StepModel& model, double limit_ms, std::int64_t limit)
      : model_(model), limit_ms_(limit_ms), limit_(limit), unread_(model.steps.size()) {}

  // Whether one of them keeps the limit.
  bool any() { return extend(0.0); }
  std::int64_t looked_at() const { return looked_at_; }

 private:
  bool extend(double ms) {
    ++looked_at_;
    if (const auto peak = peak_of(model_, runs_); peak && *peak <= limit_) return true;
    for (int s = 0; s < static_cast<int>(model_.steps.size()); ++s) {
      const ModelStep& step = model_.steps[static_cast<std::size_t>(s)];
      // A step that runs again before its result was read has run in vain before.
      if (ms + step.ms >= limit_ms_ || unread_[static_cast<std::size_t>(s)] || !can_read(step))
        continue;
      const std::vector<char> before = unread_;
      for (int input : step.inputs)
        if (const int producer = model_.values[static_cast<std::size_t>(input)].producer;
            producer >= 0)
          unread_[static_cast<std::size_t>(producer)] = 0;
      unread_[static_cast<std::size_t>(s)] = 1;
      runs_.push_back(s);
      const bool found = extend(ms + step.ms);
      runs_.pop_back();
      unread_ = before;
      if (found) return true;
    }
    return false;
  }
  bool can_read(const ModelStep& step) const {
    return std::all_of(step.inputs.begin(), step.inputs.end(), [&](int input) {
      const int producer = model_.values[static_cast<std::size_t>(input)].producer;
      return producer < 0 || std::find(runs_.begin(), runs_.end(), producer) != runs_.end();
    });
  }

  const StepModel& model_;
  double limit_ms_;
  std::int64_t limit_;
  Runs runs_;
  std::vector<char> unread_;  // whether the result of a step's last run is still unread.
  std::int64_t looked_at_ = 0;
};

// Short enough to try every list.
StepModel tiny(std::uint64_t seed) {
  StepModel model = seed % 3 == 0 ? random_layers(seed, 1 + static_cast<int>(seed / 3 % 2))
                                  : random_steps(seed, 3 + static_cast<int>(seed % 4));
  for (ModelStep& step : model.steps) step.ms = 1.0 + std::fmod(step.ms, 2.0);
  return model;
}

TEST(ExactRecompute, NoListIsQuicker) {
  std::int64_t lists = 0, recomputing = 0;
  for (std::uint64_t seed = 0; seed < (sanitized ? 60 : 400); ++seed) {
    SCOPED_TRACE(seed);
    const StepModel model = tiny(seed);
    const std::int64_t least = exact_least_peak(model), most = *peak_of(model, keep_all(model));
    ASSERT_FALSE(exact_recompute(model, least - 1));
    for (const std::int64_t limit : {least, (least + most) / 2}) {
      const auto best = exact_recompute(model, limit);
      ASSERT_TRUE(best);
      ASSERT_LE(peak_of(model, *best).value(), limit);
      EveryList quicker(model, ms_of(model, *best), limit);
      EXPECT_FALSE(quicker.any());
      lists += quicker.looked_at();
      recomputing += best->size() > model.steps.size();
    }
  }
  fmt::print("looked at {} lists; {} optima compute something again\n", lists, recomputing);
  EXPECT_GT(recomputing, sanitized ? 5 : 20);
}

// ---- The simulation ----

TEST(RecomputeSimulation, AgreesWithTheDefinition) {
  std::mt19937_64 random(3);
  const auto below = [&](std::size_t n) { return static_cast<std::ptrdiff_t>(random() % n); };
  std::int64_t allowed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < (sanitized ? 50 : 500); ++seed) {
    const StepModel model = seed % 2 == 0 ? random_layers(seed, 4) : random_steps(seed, 12);
    Simulation simulation(model);
    Runs runs = keep_all(model);
    for (int change = 0; change < 100; ++change) {
      Runs next = runs;
      if (below(3) > 0)
        next.insert(next.begin() + below(next.size() + 1),
                    static_cast<int>(below(model.steps.size())));
      else
        next.erase(next.begin() + below(next.size()));
      const bool defined = peak_of(model, next).has_value();
      ASSERT_EQ(simulation.run(next), defined) << "model " << seed;
      if (!defined) {
        ++refused;
        continue;
      }
      // Unneeded runs have been removed.
      ASSERT_EQ(simulation.peak(), peak_of(model, next).value()) << "model " << seed;
      ASSERT_EQ(simulation.ms(), ms_of(model, next)) << "model " << seed;
      ++allowed;
      runs = std::move(next);
    }
  }
  EXPECT_GT(allowed, refused / 10);
}

// ---- The search against the optimum ----

class Gaps {
 public:
  // Solves the model for limits between the least that can be kept and the peak of keeping all.
  void compare(const StepModel& model) {
    Search search(model);
    const std::int64_t least = exact_least_peak(model), most = search.peak_of(keep_all(model));
    const std::int64_t reached = search.peak_of(search.least());
    EXPECT_GE(reached, least);
    ++models_;
    not_least_ += reached > least;
    const std::int64_t limits[] = {least, least + (most - least) / 4, least + (most - least) / 2,
                                   least + (most - least) * 3 / 4};
    for (std::int64_t limit : limits) {
      if (limit >= most) break;
      const double best = ms_of(model, exact_recompute(model, limit).value());
      ++cases_;
      const auto runs = search.solve(limit);
      if (!runs) {
        ++missed_;
        continue;
      }
      EXPECT_LE(search.peak_of(*runs), limit);
      const double gap = search.ms_of(*runs) / best - 1.0;
      EXPECT_GE(gap, -1e-9) << "quicker than the optimum";
      sum_ += gap, worst_ = std::max(worst_, gap);
    }
  }

  // Measured over thousands of other models, one case in two thousand is more than 2 % off. These
  // models are always the same ones and have no such case.
  void check(const char* what) const {
    fmt::print(
        "{}: {} models, {} limits; {} missed, time above the optimum {:.4f} % in the mean, {:.2f} "
        "% "
        "at most; least peak not reached in {}\n",
        what, models_, cases_, missed_, 100.0 * sum_ / cases_, 100.0 * worst_, not_least_);
    EXPECT_EQ(missed_, 0);
    EXPECT_EQ(not_least_, 0);
    EXPECT_LE(sum_ / cases_, 0.005);
    EXPECT_LE(worst_, 0.02);
  }

 private:
  int models_ = 0, cases_ = 0, missed_ = 0, not_least_ = 0;
  double sum_ = 0.0, worst_ = 0.0;
};

TEST(RecomputeQuality, RandomLayers) {
  Gaps gaps;
  for (std::uint64_t seed = 0; seed < (sanitized ? 6 : 100); ++seed)
    gaps.compare(random_layers(seed, 3 + static_cast<int>(seed % 4)));
  gaps.check("layers");
}

TEST(RecomputeQuality, RandomSteps) {
  Gaps gaps;
  for (std::uint64_t seed = 0; seed < (sanitized ? 6 : 100); ++seed)
    gaps.compare(random_steps(seed, 8 + static_cast<int>(seed % 7)));
  gaps.check("steps");
}

// ---- Larger steps ----

// n layers of one byte and one millisecond each: forward, and backward with an update for each.
StepModel chain(int layers) {
  StepModel model;
  const auto value = [&](int producer, bool in_arena) {
    model.values.push_back(
        {.bytes = 1, .producer = producer, .in_arena = in_arena, .positions = {}});
    return static_cast<int>(model.values.size()) - 1;
  };
  const auto step = [&](std::vector<int> inputs, bool in_arena) {
    const int number = static_cast<int>(model.steps.size());
    const int output = value(number, in_arena);
    model.steps.push_back({.inputs = std::move(inputs), .outputs = {output}, .overwrites = {}});
    model.steps.back().ms = 1.0;
    model.steps.back().valid_until = 3 * layers + 1;
    return output;
  };
  std::vector<int> activations = {value(-1, true)};
  for (int i = 0; i < layers; ++i) activations.push_back(step({activations.back()}, true));
  int gradient = step({activations.back()}, true);
  for (int i = layers; i-- > 0;) {
    const int before = i > 0 ? step({gradient}, true) : -1;
    step({gradient, activations[static_cast<std::size_t>(i)]}, false);
    const int update = static_cast<int>(model.steps.size()) - 1;
    model.steps[static_cast<std::size_t>(i)].valid_until = update;
    model.steps.back().valid_until = update;
    gradient = before;
  }
  model.graph_steps = static_cast<int>(model.steps.size());
  model.finish();
  return model;
}

// With room for 2√n values, segments of √n can each be recomputed once: one more forward, which is
// a third more time.
TEST(RecomputeQuality, DepthCostsOneMoreForward) {
  for (int layers = 8; layers <= (sanitized ? 64 : 256); layers *= 2) {
    SCOPED_TRACE(layers);
    const StepModel model = chain(layers);
    Search search(model);
    const std::int64_t limit = static_cast<std::int64_t>(2.0 * std::sqrt(layers)) + 3;
    const auto start = std::chrono::steady_clock::now();
    const auto runs = search.solve(limit);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(runs);
    const double overhead = search.ms_of(*runs) / search.ms_of(keep_all(model));
    fmt::print("{} layers in {} of {} values: {:.3f} of the time, planned in {:.3f} s\n", layers,
               limit, search.peak_of(keep_all(model)), overhead, seconds.count());
    EXPECT_LE(search.peak_of(*runs), limit);
    EXPECT_LE(overhead, 4.0 / 3.0);
    EXPECT_LE(runs->size(), model.steps.size() * 4 / 3);
  }
}

}  // namespace
}  // namespace ebb::test
