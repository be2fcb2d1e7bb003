// How the learning rate changes over a run: a factor on the optimizer's own rate for every step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace ebb::optim {

class Schedule {
 public:
  virtual ~Schedule() = default;
  // The factor for step `step`, counted from 0.
  virtual double factor(std::int64_t step) const = 0;
  // Reports a metric to an adaptive schedule.
  virtual void observe(double metric) { (void)metric; }
  // State to store in checkpoints.
  virtual std::string save() const { return {}; }
  virtual void restore(const std::string& state);
};
using SchedulePtr = std::shared_ptr<Schedule>;

SchedulePtr constant();
// Times `gamma` every `every` steps.
SchedulePtr step_decay(std::int64_t every, double gamma);
// From 0 to 1 over `warmup` steps, then `after`, whose steps are counted from there.
SchedulePtr linear_warmup(std::int64_t warmup, SchedulePtr after = constant());
// From 1 down to `floor` along half a cosine over `steps`, and `floor` from then on.
SchedulePtr cosine(std::int64_t steps, double floor = 0.0);
// From 1 down to `floor` along a line over `steps`.
SchedulePtr linear_decay(std::int64_t steps, double floor = 0.0);

struct PlateauOptions {
  double factor = 0.1;
  int patience = 10;        // observations without improvement before the rate is lowered
  double threshold = 1e-4;  // relative improvement that counts
  double floor = 0.0;       // of the factor
};
// Times `factor` when the observed metric, smaller being better, has not improved for `patience`
// observations.
SchedulePtr reduce_on_plateau(PlateauOptions options = {});

}  // namespace ebb::optim
