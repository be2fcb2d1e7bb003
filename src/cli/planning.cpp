#include "cli/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/process_memory.h"
#include "cli/verb.h"
#include "ebb/data/loader.h"
#include "ebb/error.h"
#include "ebb/io/device_file.h"
#include "ebb/ops.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

// A check for CLI11 that gives the library's own message.
template <class Parse>
auto accepted_by(const Parse& parse) {
  return [parse](const std::string& text) -> std::string {
    try {
      parse(text);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
}

}  // namespace

void add_planning_options(CLI::App& app, PlanningOptions& options) {
  const char* group = "Memory";
  app.add_option("--budget", options.budget, "Bytes the step may take, such as 2GiB or 300MB")
      ->check(accepted_by([](const std::string& text) { parse_bytes(text); }))
      ->type_name("SIZE")
      ->group(group);
  app.add_flag("--whole-process", options.whole_process,
               "The budget is for the whole process: its fixed cost is measured and taken off")
      ->needs("--budget")
      ->group(group);
  app.add_option("--recompute", options.recompute,
                 "What is computed again instead of kept: none, marked, blocks, sqrt, segment=N, "
                 "segment=all, selective, greedy or auto; with a budget auto is the default")
      ->check(accepted_by([](const std::string& text) { Recompute::parse(text); }))
      ->group(group);
  app.add_option("--device", options.device,
                 "cpu, or a file that describes the device to plan for (see ebb probe)")
      ->check([](const std::string& text) -> std::string {
        if (text == "cpu" || fs::is_regular_file(text)) return {};
        return fmt::format("\"{}\" is neither cpu nor a file that describes a device", text);
      })
      ->capture_default_str()
      ->group(group);
  app.add_flag("--huge-pages", options.machine.huge_pages, "Ask for pages of 2 MiB")->group(group);
  app.add_flag("--lock-memory", options.machine.lock_memory, "Ask that memory is never paged out")
      ->group(group);
  app.add_flag("--pin-threads", options.machine.pin_threads, "Ask for a core for every thread")
      ->group(group);
}

Rates rates_for(const PlanningOptions& options) {
  return options.device == "cpu" ? io::rates_here() : io::load_device(options.device);
}

CompileOptions compile_options(const PlanningOptions& options, std::uint64_t seed,
                               const Rates& rates, Bytes fixed) {
  CompileOptions compile;
  compile.seed = seed;
  compile.machine = options.machine;
  compile.plan.rates = rates;
  if (options.recompute) compile.plan.recompute = Recompute::parse(*options.recompute);
  if (options.budget) {
    const Bytes budget = parse_bytes(*options.budget);
    if (options.whole_process && budget <= fixed)
      throw MemoryError(
          fmt::format("a budget of {} for the whole process cannot be kept: its fixed "
                      "cost alone is {}",
                      to_string(budget), to_string(fixed)));
    compile.plan.budget = options.whole_process ? budget - fixed : budget;
  }
  return compile;
}

Bytes measure_fixed_cost() {
  // Libraries take buffers for their threads when first used; products of this size fill them.
  const Tensor x = random_uniform({1024, 1024}, -1.0, 1.0, f32);
  eval(sum(matmul(x, x)));
  const Tensor image = random_uniform({4, 16, 32, 32}, -1.0, 1.0, f32);
  eval(sum(conv2d(image, random_uniform({16, 16, 3, 3}, -1.0, 1.0, f32))));
  // Code of kernels that have not run yet, and the plan itself.
  constexpr Bytes still_to_come = 24_MiB;
  return process_peak() + still_to_come;
}

TracedWorkload trace_workload(const workloads::Options& options) {
  TracedWorkload traced;
  traced.task = workloads::make_workload(options);
  workloads::Workload& task = *traced.task;
  traced.batch = task.batch_size;
  const data::Loader loader(task.train, {.batch = task.batch_size,
                                         .shuffle = false,
                                         .seed = options.seed,
                                         .last = data::LastBatch::drop});
  TrainStep step(task.model(), task.optimizer(), [&](const Batch& b) { return task.loss(b); });
  traced.graph = step.trace(loader.types().front());
  return traced;
}

std::vector<Remedy> remedies(const workloads::Options& options, const CompileOptions& compile,
                             Bytes least) {
  const TracedWorkload now = trace_workload(options);
  std::vector<Remedy> found;
  const auto offer = [&](const std::string& change, const workloads::Options& changed) {
    const Bytes bytes = least_budget(trace_workload(changed).graph, compile);
    if (bytes < least) found.push_back({change, bytes});
  };
  for (const std::int64_t divisor : {2, 4, 8})
    if (now.batch >= divisor) {
      workloads::Options smaller = options;
      smaller.batch = now.batch / divisor;
      offer(fmt::format("--batch {}", *smaller.batch), smaller);
    }
  if (options.sequence && *options.sequence >= 2) {
    workloads::Options shorter = options;
    shorter.sequence = *options.sequence / 2;
    offer(fmt::format("--sequence {}", *shorter.sequence), shorter);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Remedy& a, const Remedy& b) { return a.least < b.least; });
  return found;
}

Plan plan_or_explain(const workloads::Options& options, const Graph& graph,
                     const CompileOptions& compile) {
  try {
    return plan_program(graph, compile);
  } catch (const BudgetError& error) {
    std::string text = error.what();
    const std::vector<Remedy> ways = remedies(options, compile, error.least);
    if (!ways.empty()) text += "\nwhat would lower it, and to what:";
    for (const Remedy& way : ways)
      text += fmt::format("\n  {:<16} {:>12}, {} less", way.change, to_string(way.least),
                          to_string(error.least - way.least));
    throw MemoryError(text);
  }
}

nlohmann::ordered_json plan_fields(const Plan& plan) {
  nlohmann::ordered_json categories;
  for (int c = 0; c < category_count; ++c)
    categories[std::string(name(static_cast<Category>(c)))] =
        plan.at_peak[static_cast<Category>(c)].count;
  return {{"planned_peak_bytes", plan.peak.count},
          {"peak_by_category", categories},
          {"arena_bytes", plan.arena.count},
          {"predicted_step_ms", plan.predicted_ms},
          {"overhead", plan.overhead()},
          {"fragmentation", plan.fragmentation()},
          {"recomputed_nodes", plan.recomputed_nodes()},
          {"plan_ms", plan.made_in_ms}};
}

std::string plan_summary(const Plan& plan) {
  std::string text = fmt::format("peak {} = {} bytes, planned in {:.1f} ms\n", to_string(plan.peak),
                                 plan.peak.count, plan.made_in_ms);
  for (int c = 0; c < category_count; ++c)
    text += fmt::format("  {:<12} {:>12}\n", name(static_cast<Category>(c)),
                        to_string(plan.at_peak[static_cast<Category>(c)]));
  text += fmt::format(
      "predicted {:.2f} ms a step, {:.3f} × keeping all; {} of {} instructions run "
      "again\narena {}, {:.4f} × the live bytes at its fullest\n",
      plan.predicted_ms, plan.overhead(), plan.recomputed_nodes(), plan.instructions.size(),
      to_string(plan.arena), plan.fragmentation());
  return text;
}

}  // namespace ebb::cli
