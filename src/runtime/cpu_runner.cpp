#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/runner.h"

namespace ebb {
namespace {

// Whether copies run beside other instructions, or each alone so that it can be timed.
enum class Copies : bool { beside, alone };

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
    run(
        step, random,
        [&](std::size_t i) {
          const auto now = Clock::now();
          times[i] =
              std::chrono::duration<double, std::milli>(now - std::exchange(last, now)).count();
        },
        Copies::alone);
    return times;
  }

 private:
  // Copies between memory and files run on a thread of their own, as soon as what they wait for has
  // ended. Everything else runs here, in order. Calls `after(i)` after instruction i.
  template <class After>
  void run(const BoundStep& step, const RandomState& random, const After& after,
           Copies copies = Copies::beside) {
    copies_.begin(step.files, copies == Copies::beside ? FileCopies::Start::when_possible
                                                       : FileCopies::Start::when_reached);
    const EndOfCopies at_end(copies_, step.started);
    for (std::size_t i = 0; i < step.kernels.size(); ++i) {
      if (step.files[i].file) {
        copies_.reach(i);
        step.started = i + 1;
        if (copies == Copies::alone) copies_.wait(i);
        after(i);
        continue;
      }
      for (const InstructionId other : step.plan.instructions[InstructionId(i)].waits)
        copies_.wait(other.index());
      step.started = i + 1;
      step.args[i].random = random;
      step.kernels[i].run(step.args[i]);
      if (step.fault.raised.load(std::memory_order_relaxed)) {
        step.fault.raised = false;
        raise(step.plan.instructions[InstructionId(i)], step.fault);
      }
      copies_.reach(i + 1);
      after(i);
    }
    for (std::size_t i = 0; i < step.files.size(); ++i)
      if (step.files[i].file) copies_.wait(i);
  }

  // No copy may use the arena after the step, even if the step ends with an exception, because
  // copies may start before the computation reaches them.
  class EndOfCopies {
   public:
    EndOfCopies(FileCopies& copies, std::size_t& started) : copies_(copies), started_(started) {}
    ~EndOfCopies() {
      copies_.wait_all();
      started_ = std::max(started_, copies_.started());
    }
    EndOfCopies(const EndOfCopies&) = delete;
    EndOfCopies& operator=(const EndOfCopies&) = delete;

   private:
    FileCopies& copies_;
    std::size_t& started_;
  };

  FileCopies copies_;
};

}  // namespace

std::unique_ptr<Runner> make_cpu_runner() { return std::make_unique<CpuRunner>(); }

}  // namespace ebb
