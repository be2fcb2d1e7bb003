#include "ebb/optim/schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>

#include "ebb/error.h"

namespace ebb::optim {

void Schedule::restore(const std::string& state) {
  if (!state.empty())
    throw ValueError(fmt::format("a schedule without state cannot be restored from '{}'", state));
}

namespace {

// A schedule that depends on the step alone.
class Fixed : public Schedule {
 public:
  explicit Fixed(std::function<double(std::int64_t)> factor) : factor_(std::move(factor)) {}
  double factor(std::int64_t step) const override { return factor_(step); }

 private:
  std::function<double(std::int64_t)> factor_;
};

class Warmup : public Schedule {
 public:
  Warmup(std::int64_t steps, SchedulePtr after) : steps_(steps), after_(std::move(after)) {}
  double factor(std::int64_t step) const override {
    if (step < steps_) return static_cast<double>(step + 1) / static_cast<double>(steps_);
    return after_->factor(step - steps_);
  }
  void observe(double metric) override { after_->observe(metric); }
  std::string save() const override { return after_->save(); }
  void restore(const std::string& state) override { after_->restore(state); }

 private:
  std::int64_t steps_;
  SchedulePtr after_;
};

class Plateau : public Schedule {
 public:
  explicit Plateau(PlateauOptions options) : options_(options) {}
  double factor(std::int64_t) const override { return current_; }
  void observe(double metric) override {
    if (metric < best_ - std::abs(best_) * options_.threshold || !std::isfinite(best_)) {
      best_ = metric;
      waited_ = 0;
    } else if (++waited_ > options_.patience) {
      current_ = std::max(options_.floor, current_ * options_.factor);
      waited_ = 0;
    }
  }
  std::string save() const override {
    return fmt::format("{:a} {:a} {}", current_, best_, waited_);
  }
  void restore(const std::string& state) override {
    if (std::sscanf(state.c_str(), "%la %la %d", &current_, &best_, &waited_) != 3)
      throw ValueError(fmt::format("'{}' is not the state of a plateau schedule", state));
  }

 private:
  PlateauOptions options_;
  double current_ = 1.0, best_ = std::numeric_limits<double>::infinity();
  int waited_ = 0;
};

void require_positive(std::int64_t steps, const char* what) {
  if (steps < 1)
    throw ValueError(fmt::format("a schedule's {} must be at least 1, but is {}", what, steps));
}

void require_factor(double value, const char* what) {
  if (!(value >= 0.0 && std::isfinite(value)))
    throw ValueError(
        fmt::format("a schedule's {} must be finite and not negative, but is {}", what, value));
}

double progress(std::int64_t step, std::int64_t steps) {
  return std::clamp(static_cast<double>(step) / static_cast<double>(steps), 0.0, 1.0);
}

}  // namespace

SchedulePtr constant() {
  return std::make_shared<Fixed>([](std::int64_t) { return 1.0; });
}

SchedulePtr step_decay(std::int64_t every, double gamma) {
  require_positive(every, "interval");
  require_factor(gamma, "gamma");
  return std::make_shared<Fixed>(
      [=](std::int64_t step) { return std::pow(gamma, static_cast<double>(step / every)); });
}

SchedulePtr linear_warmup(std::int64_t warmup, SchedulePtr after) {
  if (warmup < 0)
    throw ValueError(fmt::format("a schedule's warmup must not be negative, but is {}", warmup));
  if (!after) throw ValueError("a warm-up needs a schedule that follows it, but none came");
  return std::make_shared<Warmup>(warmup, std::move(after));
}

SchedulePtr cosine(std::int64_t steps, double floor) {
  require_positive(steps, "length");
  require_factor(floor, "floor");
  return std::make_shared<Fixed>([=](std::int64_t step) {
    return floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress(step, steps)));
  });
}

SchedulePtr linear_decay(std::int64_t steps, double floor) {
  require_positive(steps, "length");
  require_factor(floor, "floor");
  return std::make_shared<Fixed>(
      [=](std::int64_t step) { return floor + (1.0 - floor) * (1.0 - progress(step, steps)); });
}

SchedulePtr reduce_on_plateau(PlateauOptions options) {
  require_factor(options.factor, "factor");
  require_factor(options.threshold, "threshold");
  require_factor(options.floor, "floor");
  if (options.patience < 0)
    throw ValueError(
        fmt::format("a schedule's patience must not be negative, but is {}", options.patience));
  return std::make_shared<Plateau>(options);
}

}  // namespace ebb::optim
