// Runs the kernels of a program on its device. A step is started and then finished; on a GPU the
// host continues in between.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ebb/plan.h"
#include "runtime/file_copies.h"

namespace ebb {

namespace cuda {
class RankLink;
}

// A step with all of its kernels and pointers.
struct BoundStep {
  const Plan& plan;
  std::vector<Kernel>& kernels;            // by instruction
  std::vector<KernelArgs>& args;           // by instruction, with all pointers
  const std::vector<FileTransfer>& files;  // by instruction
  Fault& fault;                            // where kernels on the CPU record invalid data
  std::size_t& started;  // instructions started so far, whose outputs may be incomplete
};

class Runner {
 public:
  virtual ~Runner() = default;

  // Adds the arguments that kernels on this device need besides pointers.
  virtual void complete(KernelArgs& args, const Plan& plan, InstructionId instruction) const = 0;
  // Discards recorded steps, because addresses in the arguments have changed.
  virtual void forget() = 0;

  virtual void start(const BoundStep& step, const RandomState& random) = 0;
  virtual void finish(const BoundStep& step) = 0;
  // Runs a whole step, one instruction after another, and returns the milliseconds of each.
  virtual std::vector<double> run_timed(const BoundStep& step, const RandomState& random) = 0;

 protected:
  // Throws the error for invalid data that a kernel has recorded.
  [[noreturn]] static void raise(const Instruction& instruction, const Fault& fault);
};

// `link` connects the GPUs of several ranks, or is null.
std::unique_ptr<Runner> make_runner(Device device, std::shared_ptr<cuda::RankLink> link);

// The implementations.
std::unique_ptr<Runner> make_cpu_runner();
std::unique_ptr<Runner> make_cuda_runner(Device device, std::shared_ptr<cuda::RankLink> link);

}  // namespace ebb
