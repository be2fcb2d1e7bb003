// Compiled graphs. A program runs in one arena, laid out before it runs; running allocates nothing.
#pragma once

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
class Storage;

struct CompileOptions {
  PlanOptions plan = {};
  std::optional<PassList> passes = {};  // that run, in this order; none: all of them
  // The variant that all calls of an op take, by the op's name. Ops that are not named take those
  // of the fastest plan.
  std::map<std::string, std::string> variants = {};
  // Gives the plan of a graph instead of the planner: one from a file, say (io::load_plan).
  std::function<Plan(const Graph&)> planner = {};
  std::uint64_t seed = 0;                  // of initial values and of random nodes
  std::shared_ptr<Arena> arena = nullptr;  // to run in, shared with others; null: one of its own
  MachineOptions machine = {};             // of that arena
};

// What the program for this graph would be: passes and planning. Takes no memory for tensors, and
// variables need no values.
Plan plan_program(const Graph& graph, const CompileOptions& options = {});
// The same without an exception for a budget that cannot be kept.
PlanResult try_plan_program(const Graph& graph, const CompileOptions& options);

// The smallest budget a program for this graph can keep, and beside it the smallest fast one.
Bytes least_budget(const Graph& graph, const CompileOptions& options);
LeastBudgets least_budgets(const Graph& graph, const CompileOptions& options);

class Program {
 public:
  Program(const Graph& graph, const CompileOptions& options = {});
  Program(const Graph& graph, Plan plan, const CompileOptions& options);  // by `plan_program`
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  // Gives the bytes of graph input i for the next run: an evaluated tensor, or a number for a
  // scalar.
  void feed(int i, const Tensor& value);
  void feed(int i, double value);
  // Tells ahead what input i will be fed next: on a GPU its bytes are brought near, so that feeding
  // it does not wait. The tensor must not change meanwhile.
  void expect(int i, const Tensor& value);
  // Runs once. Every input must have been fed since the run before. `meanwhile` is called while a
  // GPU is at work, elsewhere afterwards: the time to get and to expect what comes next.
  void run(const std::function<void()>& meanwhile = {});
  // After a run that ended by an exception: whether all variables still have the values that they
  // had before it.
  bool intact() const;
  // Feeds the inputs in order, then runs.
  void run(std::span<const Tensor> inputs);
  void run(std::initializer_list<Tensor> inputs) {
    run(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }

  // Runs once, and tells the milliseconds that each instruction of the plan took.
  std::vector<double> timed_run();

  // The value output i had after the last run: a copy on the host that later runs leave alone.
  Tensor output(int i) const;
  // The same for an output that is one float64, without making a tensor.
  double scalar(int i) const;

  const Plan& plan() const;
  const Leaves& leaves() const;  // of the plan
  // What the operating system holds in memory of all that the plan counts: arena, outputs,
  // constants and variables. At most plan().peak, and equal to it once every page has been touched.
  Bytes resident() const;

  // Random nodes draw from (seed, step); each run advances the step.
  std::uint64_t step() const;
  void set_step(std::uint64_t step);

 private:
  friend std::vector<Tensor> eval(std::span<const Tensor>, std::uint64_t);
  struct State;
  std::unique_ptr<State> state_;
};

// Computes tensors now. The results are constants.
std::vector<Tensor> eval(std::span<const Tensor> tensors, std::uint64_t seed = 0);
Tensor eval(const Tensor& tensor, std::uint64_t seed = 0);

// The value of a tensor as a constant on a device. Computes it first if need be.
Tensor to_device(const Tensor& tensor, Device device);

}  // namespace ebb
