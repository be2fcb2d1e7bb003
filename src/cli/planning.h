// Shared by verbs that plan a workload: options, the step to be planned, and how plans are
// reported.
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

// Adds --budget, --whole-process, the budgets of other tiers (cli/tiers.h), --recompute,
// --optimizer, --accumulate, --precision, --clip, --without, --device and the options for the
// machine.
void add_planning_options(CLI::App& app, PlanningOptions& options);

// Adds --without alone.
CLI::Option* add_without_option(CLI::App& app, PlanningOptions& options);

// Removes the options that only have an effect when running, from a verb that runs nothing.
void remove_running_options(CLI::App& app);

// The device that "cpu", "cuda" or "cuda:1" names.
std::optional<Device> named_device(const std::string& text);

// The device used for a --device: the CPU, with a message, if there is no GPU or no driver for it.
std::string drivable_device(std::string text);

// The device of tensors. The CPU stands in for a device that is only described by a file, except
// for a GPU if only plans are made and this build has the kernels whose workspaces they count.
Device device_of(const PlanningOptions& options);

// The options that all programs for the device share. An error if a feature that only GPUs have is
// requested for another device.
CompileOptions device_options(const PlanningOptions& options, const Rates& rates);

// The default layout of images inside convolutional models. A GPU's tensor cores, which multiply
// half types and float32 as TF32, are faster with the channels last; other hardware is not.
ImageLayout fastest_layout(Device device, Precision precision, bool tf32);

// The workload's options with the device, the dtype and the layout that the plan is for.
workloads::Options placed(const workloads::Options& options, const PlanningOptions& planning);

// How a step is made: precision and clipping. Compilation and accumulation are the caller's to add.
TrainOptions step_options(const PlanningOptions& options);

// The workload's own optimizer or the requested one, with learning rate `rate` if there is one.
optim::Optimizer optimizer_of(const workloads::Workload& task, const PlanningOptions& options,
                              std::optional<double> rate = {});

// The rates of the device that plans are made for: read from its file, or measured here.
Rates rates_for(const PlanningOptions& options);

// How a workload's program is to be compiled. `fixed` is what the process holds beside the plan,
// `evaluation` what a program for evaluation keeps (evaluation_keeps).
CompileOptions compile_options(const PlanningOptions& options, std::uint64_t seed,
                               const Rates& rates, Bytes fixed, Bytes evaluation = {});

// If the least budget is asked for, finds it for this graph.
void settle_budget(const PlanningOptions& options, const Graph& graph, CompileOptions& compile);

// Memory of this process beside any plan: data in memory, code, the graph, buffers of libraries
// (which are used once so that they exist), and `still_to_come`. To be measured again once the plan
// is made, because planning takes memory too. An error if the process has already exceeded the
// budget.
Bytes measure_fixed_cost(const PlanningOptions& planning, Bytes still_to_come);

// The same for a workload that has yet to be made.
Bytes fixed_cost_of(const workloads::Options& options, const PlanningOptions& planning);

// An upper bound of a loader's memory: prefetched batches, those in use and being made, and two
// orders of the items.
Bytes loader_bytes(const data::Dataset& dataset, const data::LoaderOptions& options);

// A workload and the graph of its training step. Making it takes no memory for tensors.
struct TracedWorkload {
  std::unique_ptr<workloads::Workload> task;
  std::int64_t batch = 0;
  optim::Optimizer optimizer;  // with the form parameters are kept in
  Graph graph;
  std::unique_ptr<TrainStep> step;  // whose graph it is
};
// Chooses the stage for --shard auto. `compile` has the budget.
void settle_shard(const workloads::Options& options, PlanningOptions& planning,
                  const CompileOptions& compile);
// An error if a batch has fewer items than micro-batches are asked for.
void check_accumulation(std::int64_t parts, std::int64_t batch);
TracedWorkload trace_workload(const workloads::Options& options, const PlanningOptions& planning,
                              std::int64_t accumulate);
// The graph of a step of an existing workload.
Graph trace_step(workloads::Workload& task, const PlanningOptions& planning,
                 std::int64_t accumulate);

// The number of micro-batches, among those tried, whose plan is fastest. `predicted_ms` plans a
// step with that many. It throws a BudgetError if that cannot keep the budget, and a ValueError if
// such a step cannot be made; if no number works, this error is thrown.
std::int64_t fastest_parts(std::int64_t batch,
                           const std::function<double(std::int64_t parts)>& predicted_ms);

// The number of micro-batches of a step: the given number or, for auto, the one whose plan is
// fastest within the budget.
std::int64_t accumulation(workloads::Workload& task, const PlanningOptions& planning,
                          const CompileOptions& compile);
std::int64_t accumulation(const workloads::Options& options, const PlanningOptions& planning,
                          const CompileOptions& compile);

// The fields of a result that describe a plan.
nlohmann::ordered_json plan_fields(const Plan& plan);
// The data for training and testing: source, items and tokens of each part.
nlohmann::ordered_json data_fields(const std::map<std::string, workloads::DataPart>& parts);
std::string plan_summary(const Plan& plan);  // the same for people: a few lines

}  // namespace ebb::cli
