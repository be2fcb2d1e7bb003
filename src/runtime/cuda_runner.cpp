#include <fmt/core.h>

#include <optional>

#include "core/cuda/cuda.h"
#include "core/cuda/rank_link.h"
#include "ebb/error.h"
#include "runtime/lanes.h"
#include "runtime/resident.h"
#include "runtime/runner.h"

namespace ebb {
namespace {

// The first run launches every kernel separately, which loads libraries and code. The second run is
// captured as a CUDA graph, which it and all later runs replay.
class CudaRunner final : public Runner {
 public:
  CudaRunner(Device device, std::shared_ptr<cuda::RankLink> link)
      : device_(device), link_(std::move(link)) {}

  void complete(KernelArgs& args, const Plan& plan, InstructionId instruction) const override {
    args.stream = cuda::stream(device_, lane_of(plan, plan.instructions[instruction]));
    args.control = cuda::control(device_);
    args.instruction = static_cast<int>(instruction.index());
  }

  void forget() override {
    recording_.reset();
    timed_recording_.reset();
    launches_.reset();
    warm_ = false;
  }

  void start(const BoundStep& step, const RandomState& random) override {
    if (!lanes_) lanes_.emplace(step.plan);
    if (!launches_) launches_ = joined_launches(step);
    with_ranks(step, [&] {
      run(step, random, recording_,
          [&] { lanes_->start(step.plan, step.kernels, step.args, *launches_); });
    });
  }

  void finish(const BoundStep& step) override {
    cuda::Fault found;
    with_ranks(step, [&] { found = cuda::take_fault(device_); });
    if (found.instruction == 0) return;
    Fault fault;
    fault.position = found.position, fault.value = found.value, fault.limit = found.limit;
    raise(step.plan.instructions[InstructionId(found.instruction - 1)], fault);
  }

  // Runs all instructions on one stream, so that the times do not overlap.
  std::vector<double> run_timed(const BoundStep& step, const RandomState& random) override {
    const std::size_t count = step.kernels.size();
    if (!clock_) clock_.emplace(device_, count + 1);
    with_ranks(step, [&] {
      run(step, random, timed_recording_, [&] {
        clock_->mark(0);
        for (std::size_t i = 0; i < count; ++i) {
          KernelArgs alone = step.args[i];
          alone.stream = cuda::stream(device_);
          step.kernels[i].run(alone);
          clock_->mark(i + 1);
        }
      });
    });
    finish(step);
    return clock_->intervals();
  }

 private:
  // Instructions of other lanes, and those that wait for them, are launched by themselves.
  static std::vector<Launched> joined_launches(const BoundStep& step) {
    std::vector<bool> alone;
    for (const Instruction& instruction : step.plan.instructions)
      alone.push_back(lane_of(step.plan, instruction) != cuda::Lane::main ||
                      !instruction.waits.empty());
    return launches_of(step.plan, step.kernels, step.args, alone);
  }

  // Runs work that other ranks take part in. If a rank is lost, the work ends early, with or
  // without an error; then the error that names that rank and the collective is thrown.
  template <class Work>
  void with_ranks(const BoundStep& step, const Work& work) const {
    try {
      work();
    } catch (const Error&) {
      if (!link_ || !link_->failed()) throw;
    }
    if (!link_ || !link_->failed()) return;
    const std::int32_t reached = link_->instruction_reached();
    if (reached == 0) link_->raise("the start of a step");
    const Instruction& instruction = step.plan.instructions[InstructionId(reached - 1)];
    link_->raise(instruction.path.empty()
                     ? std::string(instruction.op->name())
                     : fmt::format("{} at \"{}\"", instruction.op->name(), instruction.path));
  }

  void run(const BoundStep& step, const RandomState& random,
           std::unique_ptr<cuda::Recording>& recording, const std::function<void()>& start_all) {
    step.started = step.kernels.size();
    cuda::write_random(device_, random);
    if (!warm_) {
      start_all();
      warm_ = true;
      return;
    }
    if (!recording) recording = std::make_unique<cuda::Recording>(device_, start_all);
    recording->replay();
  }

  Device device_;
  std::shared_ptr<cuda::RankLink> link_;  // before the recordings, which must be gone when it ends
  bool warm_ = false;  // whether a run with the current addresses has taken place
  std::optional<Lanes> lanes_;
  std::optional<std::vector<Launched>> launches_;  // with the current addresses
  std::unique_ptr<cuda::Recording> recording_, timed_recording_;
  std::optional<cuda::Clock> clock_;
};

}  // namespace

std::unique_ptr<Runner> make_cuda_runner(Device device, std::shared_ptr<cuda::RankLink> link) {
  return std::make_unique<CudaRunner>(device, std::move(link));
}

}  // namespace ebb
