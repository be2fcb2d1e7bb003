#include "cli/budget_errors.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cli/process_memory.h"
#include "ebb/error.h"

namespace ebb::cli {

std::vector<Remedy> remedies(const workloads::Options& options, const PlanningOptions& planning,
                             CompileOptions compile, Bytes least) {
  compile.plan.effort = Effort::quick;  // every candidate is planned
  const std::int64_t parts = planning.accumulate == "auto" ? 1 : std::stoll(planning.accumulate);
  const std::int64_t batch = trace_workload(options, planning, 1).batch;
  std::vector<Remedy> found;
  const auto offer = [&](const std::string& change, const workloads::Options& sizes,
                         const PlanningOptions& changed, std::int64_t micro_batches) {
    try {
      const Bytes bytes =
          least_budget(trace_workload(sizes, changed, micro_batches).graph, compile);
      if (bytes < least) found.push_back({change, bytes});
    } catch (const Error&) {  // a change that the other options do not allow is no remedy
    }
  };
  if (planning.recompute) {
    const Recompute asked = std::exchange(compile.plan.recompute, Recompute::parse("auto"));
    offer("--recompute auto", options, planning, parts);
    compile.plan.recompute = asked;
  }
  for (const std::int64_t factor : {2, 4, 8})
    if (batch >= factor * parts && !planning.leaves)
      offer(fmt::format("--accumulate {}", factor * parts), options, planning, factor * parts);
  if (batch >= 2 && batch / 2 >= parts && !planning.leaves) {
    workloads::Options smaller = options;
    smaller.batch = batch / 2;
    offer(fmt::format("--batch {}", *smaller.batch), smaller, planning, parts);
  }
  if (options.sequence && *options.sequence >= 2) {
    workloads::Options shorter = options;
    shorter.sequence = *options.sequence / 2;
    offer(fmt::format("--sequence {}", *shorter.sequence), shorter, planning, parts);
  }
  for (const char* stage : {"1", "2", "3"}) {
    PlanningOptions leaner = planning;
    leaner.shard = stage;
    if (planning.ranks > 1 && planning.shard < stage)
      offer(fmt::format("--shard {}", stage), options, leaner, parts);
  }
  for (const char* name : {"bf16", "split-bf16"}) {
    PlanningOptions leaner = planning;
    leaner.precision = name;
    if (planning.precision == "fp32")
      offer(fmt::format("--precision {}", name), options, leaner, parts);
  }
  for (const char* name : {"adamw8bit", "adafactor"}) {
    if (planning.shard != "0" && name == std::string_view("adafactor"))
      continue;  // its state cannot be sharded
    PlanningOptions leaner = planning;
    leaner.optimizer = name;
    if (planning.optimizer != name)
      offer(fmt::format("--optimizer {}", name), options, leaner, parts);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Remedy& x, const Remedy& y) { return x.least < y.least; });
  return found;
}

std::string explained(Bytes budget, LeastBudgets kept, const PlanningOptions& planning,
                      const Beside& beside) {
  const bool least = !planning.budget || planning.budget == "least";
  const Bytes asked = least ? budget + beside.total() : parse_bytes(*planning.budget);
  for (KeptBudget* one : {&kept.least, &kept.fast}) one->bytes += beside.total();
  std::string text =
      fmt::format("a budget of {}{} cannot be kept: {}", to_string(asked),
                  planning.whole_process ? " for the whole process" : "", to_string(kept));
  if (planning.whole_process)
    text += fmt::format("; {} of that is the fixed cost of the process", to_string(beside.fixed));
  return text;
}

Plan plan_or_explain(const workloads::Options& options, const PlanningOptions& planning,
                     const Graph& graph, const CompileOptions& compile,
                     const Beside& beside_before) {
  try {
    return plan_program(graph, compile);
  } catch (const BudgetError& error) {
    Beside beside = beside_before;
    if (planning.whole_process) {
      give_back_freed_memory();
      beside.fixed += std::max(Bytes{}, process_resident() - beside.resident);
    }
    std::string text = explained(error.budget, error.kept, planning, beside);
    const std::vector<Remedy> ways = remedies(options, planning, compile, error.least);
    for (std::size_t i = 0; i < ways.size(); ++i)
      text += fmt::format("{} {} to {}, {} less", i == 0 ? "; what would lower it:" : ",",
                          ways[i].change, to_string(ways[i].least + beside.total()),
                          to_string(error.least - ways[i].least));
    throw MemoryError(text);
  }
}

}  // namespace ebb::cli
