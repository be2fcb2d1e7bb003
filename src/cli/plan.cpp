// `ebb plan`: predicts the memory and time of a training step, before anything runs.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/activation_report.h"
#include "cli/budget_errors.h"
#include "cli/evaluation.h"
#include "cli/fp8_report.h"
#include "cli/level_rules.h"
#include "cli/link_traffic.h"
#include "cli/memory_check.h"
#include "cli/multilevel.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/pass_table.h"
#include "cli/planning.h"
#include "cli/process_memory.h"
#include "cli/ranks.h"
#include "cli/recompute_rules.h"
#include "cli/tiers.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "cli/workload_options.h"
#include "core/json.h"
#include "ebb/io/atomic_file.h"
#include "ebb/io/plan_file.h"
#include "ebb/report/memory_profile.h"

namespace ebb::cli {
namespace {

class PlanVerb : public Verb {
 public:
  PlanVerb()
      : Verb("plan", "Predict the peak memory and the time of a training step without running it",
             "ebb plan --workload gpt2 --batch 16 --budget 4GiB") {}

 protected:
  void configure(CLI::App& app) override {
    config_.attach(app);
    add_workload_options(app, workload_, Levels::several);
    add_multilevel_options(app, multilevel_);
    add_planning_options(app, planning_);
    remove_running_options(app);
    add_ranks_option(app, planning_);
    add_rank_options(app, planning_);
    add_option(app, "--profile", profile_,
               "Write every buffer and instruction to this file, as JSON")
        .type_name("FILE");
    add_option(app, "--save", save_, "Write the plan to this file, which ebb train --plan can run")
        .type_name("FILE");
    add_flag(app, "--passes", passes_,
             "List the passes over the step's graph, and the effect of each");
  }

  int run() override {
    planning_.only_plans = true;
    check_outputs();
    if (is_multilevel(workload_.name)) {
      for (const auto& [given, option] : {std::pair{profile_.has_value(), "--profile"},
                                          {save_.has_value(), "--save"},
                                          {passes_, "--passes"}})
        if (given)
          throw UsageError(fmt::format("{} is for workloads with one program, but {} has several",
                                       option, workload_.name));
      multilevel_.common = workload_;
      check_workload_options(multilevel_);
      refuse_single_level_options(workload_.name, planning_);
      refuse_fast_alone(planning_);
      settle_ranks(planning_);
      return plan_multilevel(multilevel_, planning_, json() ? Output::json : Output::text);
    }
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    refuse_fast_alone(planning_);
    settle_ranks(planning_);
    if (save_ && planning_.ranks > 1)
      throw UsageError(
          "--save writes the plan of one rank, but there are several: leave it out, as each rank "
          "makes the same plan itself");
    const Rates rates = rates_for(planning_);
    std::optional<Waiting> waiting(std::in_place, "planning");
    const Bytes fixed = planning_.whole_process ? fixed_cost_of(workload_, planning_) : Bytes{};
    const auto own = workloads::make_workload(placed(workload_, planning_));
    const Bytes resident = process_resident();
    const Bytes beside = evaluation_keeps(own->model(), metrics_of(*own), *own->test);
    CompileOptions compile = compile_options(planning_, workload_.seed, rates, fixed, beside);
    settle_shard(workload_, planning_, compile);
    const std::int64_t parts = accumulation(*own, planning_, compile);
    const TracedWorkload traced = trace_workload(workload_, planning_, parts);
    settle_budget(planning_, traced.graph, compile);
    const Plan plan =
        plan_or_explain(workload_, planning_, traced.graph, compile, {beside, fixed, resident});
    require_recomputation(planning_, workload_.name, plan);
    const Evaluation evaluation(
        traced.task->model(), metrics_of(*traced.task), traced.task->test, traced.batch, 1, compile,
        TrainingMemory{
            plan.arena(), plan.persistent, plan,
            compile.plan.budget ? std::optional(*compile.plan.budget + beside) : std::nullopt,
            fixed},
        [&](const Graph& graph) { return traced.step->gathered(graph); });
    const Bytes peak = std::max(plan.peak, evaluation.peak());
    std::optional<Fp8Products> in_fp8;
    if (precision_by_name(planning_.precision) == Precision::fp8)
      in_fp8 = fp8_products(traced.graph);
    std::optional<CodedActivations> in_codes;
    if (planning_.activation_bits)
      in_codes = coded_activations(traced.graph, compile.passes.value());
    nlohmann::ordered_json memory;
    warn_if_too_large(peak + fixed, planning_, rates, memory);
    const std::int64_t state =
        optim::state_bytes(traced.optimizer, traced.task->model().trainable_parameters()).count;
    const double state_per_parameter =
        static_cast<double>(state) / static_cast<double>(traced.task->model().parameter_count());
    LeastBudgets smallest = least_budgets(traced.graph, compile);
    for (KeptBudget* budget : {&smallest.least, &smallest.fast})
      budget->bytes = std::min(peak, budget->bytes + beside) + fixed;
    waiting.reset();
    const report::MemoryProfile profile = report::profile(plan);
    if (profile_) {
      io::AtomicFile file(*profile_);
      file.write(report::to_json(profile, plan));
      file.commit();
    }
    if (save_) io::save_plan(plan, traced.graph, *save_);
    if (json()) {
      nlohmann::ordered_json result{{"workload", workload_.name},
                                    {"device", rates.name},
                                    {"params", traced.task->model().parameter_count()},
                                    {"batch", traced.batch},
                                    {"precision", planning_.precision},
                                    {"accumulate", parts},
                                    {"state_bytes_per_parameter", state_per_parameter}};
      if (in_fp8) result["products"] = to_json(*in_fp8);
      if (in_codes) result["activations"] = to_json(*in_codes);
      if (compile.plan.budget)
        result["budget_bytes"] = (*compile.plan.budget + beside + fixed).count;
      if (planning_.whole_process) result["fixed_bytes"] = fixed.count;
      result.update(plan_fields(plan));
      if (const auto tiers = tier_fields(plan, compile); !tiers.empty()) result["tiers"] = tiers;
      if (planning_.leaves) result.update(link_fields(planning_, link_traffic(plan, rates)));
      result["planned_peak_bytes"] = peak.count;  // of steps and evaluation
      result["eval_batch"] = evaluation.part();
      result.update(memory);
      result["min_feasible_bytes"] = smallest.least.bytes.count;
      result["min_feasible_overhead"] = smallest.least.overhead;
      result["min_fast_bytes"] = smallest.fast.bytes.count;
      result["min_fast_overhead"] = smallest.fast.overhead;
      if (passes_) result["passes"] = to_json(pass_table(traced.graph, compile, planning_, parts));
      std::cout << json_text(result) << "\n";
      return success;
    }
    fmt::print(
        "{}: {} parameters, batch {}{}, {:.4g} bytes of optimizer state a parameter, on {}\n",
        workload_.name, traced.task->model().parameter_count(), traced.batch,
        parts > 1 ? fmt::format(" in {} micro-batches", parts) : "", state_per_parameter,
        rates.name);
    if (in_fp8) fmt::print("{}", to_string(*in_fp8));
    if (in_codes) fmt::print("{}", to_string(*in_codes));
    if (passes_)
      fmt::print("\n{}\n", to_string(pass_table(traced.graph, compile, planning_, parts)));
    if (planning_.whole_process) fmt::print("fixed cost of the process {}\n", to_string(fixed));
    if (planning_.leaves) fmt::print("{}", link_text(planning_, link_traffic(plan, rates), rates));
    fmt::print("{}of all budgets, {}\n\n{}", plan_summary(plan), to_string(smallest),
               to_string(profile));
    return success;
  }

 private:
  void check_outputs() const {
    for (const auto& [option, file] : {std::pair{"--profile", profile_}, {"--save", save_}}) {
      if (file && workload_.data) refuse_over_input(option, *file, "--data", *workload_.data);
      if (file && workload_.model) refuse_over_input(option, *file, "--model", *workload_.model);
      if (file && !config_.path().empty())
        refuse_over_input(option, *file, "--config", config_.path());
      if (file && !named_device(planning_.device))
        refuse_over_input(option, *file, "--device", planning_.device);
    }
    const auto whole = [](const std::string& file) {
      return std::filesystem::absolute(file).lexically_normal();
    };
    if (profile_ && save_ && whole(*profile_) == whole(*save_))
      throw UsageError("--profile and --save name the same file");
  }

  workloads::Options workload_;
  workloads::MultilevelOptions multilevel_;
  PlanningOptions planning_;
  std::optional<std::string> profile_;
  std::optional<std::string> save_;
  bool passes_ = false;
};

}  // namespace

std::unique_ptr<Verb> plan_verb() { return std::make_unique<PlanVerb>(); }

}  // namespace ebb::cli
