// Compiled graphs. A program runs in one arena whose layout is planned; running allocates nothing.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/graph.h"
#include "ebb/machine.h"
#include "ebb/passes.h"
#include "ebb/plan.h"
#include "ebb/random.h"

namespace ebb {

class Arena;
class Communicator;
class Storage;

struct CompileOptions {
  PlanOptions plan = {};
  std::optional<PassList> passes = {};  // the passes to run, in this order; none: all of them
  // For an op's name, the variant that all calls of that op use. The planner chooses the variants
  // of all other ops, for the fastest plan.
  std::map<std::string, std::string> variants = {};
  // Called with a short message when libraries are about to be tuned (see `tune`, ebb/probe.h).
  std::function<void(const std::string&)> tell = {};
  // Returns the plan to use instead of making one, for example from a file (io::load_plan).
  std::function<Plan(const Graph&)> planner = {};
  std::uint64_t seed = 0;                  // of initial values and of random nodes
  std::shared_ptr<Arena> arena = nullptr;  // an arena shared with other programs; null: its own
  MachineOptions machine = {};             // of the arena's memory
  // The ranks that the graph's collectives (ops/collective) run on. Null if the graph has no
  // collectives with other ranks, or is only planned.
  std::shared_ptr<Communicator> communicator = nullptr;
  std::filesystem::path offload_folder = {};  // for the file of a plan that uses the disk
};

// The plan of the program for this graph: runs passes and planner. Allocates no tensors; variables
// need no values.
Plan plan_program(const Graph& graph, const CompileOptions& options = {});
// Like plan_program, but a budget that cannot be kept is no exception.
PlanResult try_plan_program(const Graph& graph, const CompileOptions& options);

// The smallest budget that a program for this graph can keep; and with it, the smallest fast one.
Bytes least_budget(const Graph& graph, const CompileOptions& options);
LeastBudgets least_budgets(const Graph& graph, const CompileOptions& options);

class Program {
 public:
  Program(const Graph& graph, const CompileOptions& options = {});
  Program(const Graph& graph, Plan plan, const CompileOptions& options);  // from `plan_program`
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  // Sets graph input i for the next run: to a tensor that has been evaluated, or to a number if the
  // input is a float64 scalar.
  void feed(int i, const Tensor& value);
  void feed(int i, double value);
  // Announces the tensor that input i will be fed next. For a GPU it is copied to pinned host
  // memory, so that feeding it is asynchronous. It must not change until then.
  void expect(int i, const Tensor& value);
  // Runs once. Every input must have been fed since the previous run. `meanwhile` is called while
  // a GPU runs the step, on the CPU after it: use it to load and expect the next batch.
  void run(const std::function<void()>& meanwhile = {});
  // After a run that threw an exception: whether all variables still have their values from before
  // that run.
  bool intact() const;
  // Feeds the inputs in order, then runs.
  void run(std::span<const Tensor> inputs);
  void run(std::initializer_list<Tensor> inputs) {
    run(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }

  // Runs once and returns the milliseconds of each instruction of the plan.
  std::vector<double> timed_run();

  // Output i of the last run, as a copy on the host that later runs do not change.
  Tensor output(int i) const;
  // The same for an output that is a float64 scalar, without making a tensor.
  double scalar(int i) const;

  const Plan& plan() const;
  const Leaves& leaves() const;  // nodes of plan().leaves
  // Resident memory of all that the plan counts: arena, outputs, constants and variables. At most
  // plan().peak, and equal to it once every page has been touched.
  Bytes resident() const;

  // What the operating system says is held in each tier other than the device: variables, and
  // buffers of a step. Equal to plan().held.
  ByTier<Bytes> held() const;
  // Bytes and busy seconds of copies between memory and files so far, by this program's step.
  struct FileTraffic {
    Bytes read, written;
    double read_seconds = 0.0, write_seconds = 0.0;
  };
  FileTraffic file_traffic() const;

  // Random nodes draw from (seed, step); each run advances the step.
  std::uint64_t step() const;
  void set_step(std::uint64_t step);

 private:
  friend std::vector<Tensor> eval(std::span<const Tensor>, std::uint64_t);
  struct State;
  std::unique_ptr<State> state_;
};

// Computes tensors now and returns them as constants.
std::vector<Tensor> eval(std::span<const Tensor> tensors, std::uint64_t seed = 0);
Tensor eval(const Tensor& tensor, std::uint64_t seed = 0);

// The value of a tensor as a constant on a device. Computes it first if it has no value yet.
Tensor to_device(const Tensor& tensor, Device device);

}  // namespace ebb
