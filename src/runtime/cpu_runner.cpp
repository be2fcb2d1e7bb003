#include <chrono>
#include <utility>

#include "runtime/runner.h"

namespace ebb {
namespace {

class CpuRunner final : public Runner {
 public:
  void complete(KernelArgs&, const Plan&, InstructionId) const override {}
  void forget() override {}

  void start(const BoundStep& step, const RandomState& random) override {
    run(step, random, [](std::size_t) {});
  }
  void finish(const BoundStep&) override {}

  std::vector<double> run_timed(const BoundStep& step, const RandomState& random) override {
    using Clock = std::chrono::steady_clock;
    std::vector<double> times(step.plan.instructions.size());
    auto last = Clock::now();
    run(step, random, [&](std::size_t i) {
      const auto now = Clock::now();
      times[i] = std::chrono::duration<double, std::milli>(now - std::exchange(last, now)).count();
    });
    return times;
  }

 private:
  // Calls `after(i)` after instruction i.
  template <class After>
  static void run(const BoundStep& step, const RandomState& random, const After& after) {
    for (std::size_t i = 0; i < step.kernels.size(); ++i) {
      step.args[i].random = random;
      step.started = i + 1;
      step.kernels[i].run(step.args[i]);
      if (step.fault.raised.load(std::memory_order_relaxed)) {
        step.fault.raised = false;
        raise(step.plan.instructions[InstructionId(i)], step.fault);
      }
      after(i);
    }
  }
};

}  // namespace

std::unique_ptr<Runner> make_cpu_runner() { return std::make_unique<CpuRunner>(); }

}  // namespace ebb
