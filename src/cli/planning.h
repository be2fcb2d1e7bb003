// What the verbs that plan a workload share: options, the step to be planned, and how plans are
// told.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "ebb/data/loader.h"
#include "ebb/program.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/train_spec.h"
#include "ebb/workloads/workload.h"

namespace ebb::cli {

using workloads::PlanningOptions;

// Adds --budget, --whole-process, those of other tiers (cli/tiers.h), --recompute, --optimizer,
// --accumulate, --precision, --clip,
// --without, --device and the wishes for the machine.
void add_planning_options(CLI::App& app, PlanningOptions& options);

// Adds --without alone.
CLI::Option* add_without_option(CLI::App& app, PlanningOptions& options);

// Takes away those that only running can show, from a verb that runs nothing.
void remove_running_options(CLI::App& app);

// The device that "cpu", "cuda" or "cuda:1" names.
std::optional<Device> named_device(const std::string& text);

// What is used for a --device: the CPU in place of a GPU where there is no GPU or no driver for it,
// with a line that says so.
std::string drivable_device(std::string text);

// Where tensors are. A device that is only described in a file is stood in for by the CPU, unless
// it is a GPU, only plans are made, and this build has the kernels whose workspaces they count.
Device device_of(const PlanningOptions& options);

// What all programs for the device have in common; an error where what only a GPU has is asked of
// another device.
CompileOptions device_options(const PlanningOptions& options, const Rates& rates);

// How images are to lie inside convolutional models where nothing is said: a GPU's tensor cores,
// which multiply halves and float32 as TF32, want the channels last; what else multiplies does not.
ImageLayout fastest_layout(Device device, Precision precision, bool tf32);

// The workload's options with the device, the dtype and the layout that the plan is for.
workloads::Options placed(const workloads::Options& options, const PlanningOptions& planning);

// How a step is made: precision and clipping. Compilation and accumulation are the caller's to add.
TrainOptions step_options(const PlanningOptions& options);

// The workload's own optimizer or the one asked for, with `rate` if there is one.
optim::Optimizer optimizer_of(const workloads::Workload& task, const PlanningOptions& options,
                              std::optional<double> rate = {});

// How fast the device is that plans are made for: a file's word, or measured here.
Rates rates_for(const PlanningOptions& options);

// How a workload's program is to be compiled. `fixed` is what the process holds beside the plan,
// `evaluation` what a program for evaluation keeps (evaluation_keeps).
CompileOptions compile_options(const PlanningOptions& options, std::uint64_t seed,
                               const Rates& rates, Bytes fixed, Bytes evaluation = {});

// Where the budget asked for is the least there can be, finds it for this graph.
void settle_budget(const PlanningOptions& options, const Graph& graph, CompileOptions& compile);

// What this process takes beside any plan: data that has been read, code, the graph, buffers of
// libraries, which are used for that, and what is still to come. To be asked again when the plan
// has been made, as planning takes memory too. An error where the process has already had more than
// the budget.
Bytes measure_fixed_cost(const PlanningOptions& planning, Bytes still_to_come);

// The same for a workload that is about to be made.
Bytes fixed_cost_of(const workloads::Options& options, const PlanningOptions& planning);

// What a loader holds at most: batches ahead, in use and being made, and two orders of the items.
Bytes loader_bytes(const data::Dataset& dataset, const data::LoaderOptions& options);

// A workload and the graph of its training step. Making it takes no memory for tensors.
struct TracedWorkload {
  std::unique_ptr<workloads::Workload> task;
  std::int64_t batch = 0;
  optim::Optimizer optimizer;  // with the form parameters are kept in
  Graph graph;
  std::unique_ptr<TrainStep> step;  // whose graph it is
};
// Settles --shard auto. `compile` has the budget.
void settle_shard(const workloads::Options& options, PlanningOptions& planning,
                  const CompileOptions& compile);
// An error where a batch has fewer items than micro-batches are asked for.
void check_accumulation(std::int64_t parts, std::int64_t batch);
TracedWorkload trace_workload(const workloads::Options& options, const PlanningOptions& planning,
                              std::int64_t accumulate);
// The graph of a step of a workload that is there already.
Graph trace_step(workloads::Workload& task, const PlanningOptions& planning,
                 std::int64_t accumulate);

// The number of micro-batches, of those tried, whose plan is fastest. `predicted_ms` plans a step
// of so many. It throws a BudgetError where that cannot keep the budget, and a ValueError where
// such a step cannot be made; where none can, this is the error.
std::int64_t fastest_parts(std::int64_t batch,
                           const std::function<double(std::int64_t parts)>& predicted_ms);

// How many micro-batches a step is cut into: the number given or, for auto, the one whose plan is
// fastest within the budget.
std::int64_t accumulation(workloads::Workload& task, const PlanningOptions& planning,
                          const CompileOptions& compile);
std::int64_t accumulation(const workloads::Options& options, const PlanningOptions& planning,
                          const CompileOptions& compile);

// The fields that tell of a plan.
nlohmann::ordered_json plan_fields(const Plan& plan);
// What is trained and tested on: source, items and tokens of each part.
nlohmann::ordered_json data_fields(const std::map<std::string, workloads::DataPart>& parts);
std::string plan_summary(const Plan& plan);  // the same for people: a few lines

}  // namespace ebb::cli
