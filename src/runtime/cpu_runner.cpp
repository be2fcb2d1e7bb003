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
  // Copies between memory and files run by themselves, from the call that starts them to the one
  // that waits. Everything else runs here, in order. Calls `after(i)` after instruction i.
  template <class After>
  void run(const BoundStep& step, const RandomState& random, const After& after,
           Copies copies = Copies::beside) {
    tickets_.assign(step.kernels.size(), {});
    const WaitForAll at_end(step.files);
    OffloadFile* moving = nullptr;  // the file of the newest copy
    std::size_t newest = 0;
    for (std::size_t i = 0; i < step.kernels.size(); ++i) {
      for (const InstructionId other : step.plan.instructions[InstructionId(i)].waits)
        await(step.files[other.index()], other.index());
      step.started = i + 1;
      if (const FileTransfer& copy = step.files[i]; copy.file) {
        tickets_[i] = copy.fetch ? copy.file->read(copy.memory, copy.offset)
                                 : copy.file->write(copy.memory, copy.offset);
        moving = copy.file, newest = i;
        if (copies == Copies::alone) await(copy, i);
      } else {
        step.args[i].random = random;
        step.kernels[i].run(step.args[i]);
        if (step.fault.raised.load(std::memory_order_relaxed)) {
          step.fault.raised = false;
          raise(step.plan.instructions[InstructionId(i)], step.fault);
        }
        if (moving) (void)moving->done(tickets_[newest]);  // lets waiting pieces start
      }
      after(i);
    }
    for (std::size_t i = 0; i < step.files.size(); ++i) await(step.files[i], i);
  }

  void await(const FileTransfer& copy, std::size_t i) {
    if (copy.file) copy.file->wait(tickets_[i]);
  }

  // No copy may use the arena after the step, also if the step ends with an exception.
  class WaitForAll {
   public:
    explicit WaitForAll(const std::vector<FileTransfer>& files) : files_(files) {}
    ~WaitForAll() {
      OffloadFile* before = nullptr;
      for (const FileTransfer& copy : files_)
        if (copy.file && std::exchange(before, copy.file) != copy.file) copy.file->wait_all();
    }
    WaitForAll(const WaitForAll&) = delete;
    WaitForAll& operator=(const WaitForAll&) = delete;

   private:
    const std::vector<FileTransfer>& files_;
  };

  std::vector<OffloadFile::Ticket> tickets_;  // by instruction
};

}  // namespace

std::unique_ptr<Runner> make_cpu_runner() { return std::make_unique<CpuRunner>(); }

}  // namespace ebb
