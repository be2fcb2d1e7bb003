#include "cli/planning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/accepted_by.h"
#include "cli/bound_step.h"
#include "cli/level_rules.h"
#include "cli/member_of.h"
#include "cli/numbers.h"
#include "cli/process_memory.h"
#include "cli/ranks.h"
#include "cli/recompute_rules.h"
#include "cli/sparsity.h"
#include "cli/tiers.h"
#include "cli/verb.h"
#include "core/cuda/cuda.h"
#include "ebb/activation_bits.h"
#include "ebb/data/loader.h"
#include "ebb/error.h"
#include "ebb/io/device_file.h"
#include "ebb/ops.h"
#include "ebb/optim/by_name.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

void check_whole_process(const PlanningOptions& options) {
  if (!options.whole_process) return;
  if (!options.budget) throw UsageError("--whole-process needs --budget SIZE");
  if (options.budget == "least")
    throw UsageError(
        "--whole-process needs a size, such as --budget 2GiB: --budget least is only for the step");
}

}  // namespace

std::optional<Device> named_device(const std::string& text) {
  if (text == "cpu") return device::cpu;
  if (text == "cuda") return device::cuda(0);
  if (text.size() == 6 && text.starts_with("cuda:") && text[5] >= '0' && text[5] <= '9')
    return device::cuda(text[5] - '0');
  return {};
}

std::string drivable_device(std::string text) {
  const std::optional<Device> device = named_device(text);
  if (!device || device->kind != Device::Kind::cuda || cuda::device_count() > 0) return text;
  try {
    cuda::require(*device);
  } catch (const DeviceError& missing) {
    std::cerr << "ebb: " << missing.what() << "; running on the CPU" << std::endl;
  }
  return "cpu";
}

CLI::Option* add_without_option(CLI::App& app, PlanningOptions& options) {
  return app
      .add_option("--without", options.without,
                  "Passes to leave out, joined by commas (ebb plan --passes lists them)")
      ->delimiter(',')
      ->check(accepted_by([](const std::string& name) { passes_without({}, {name}); },
                          all_pass_names()))
      ->type_name("PASSES");
}

void add_planning_options(CLI::App& app, PlanningOptions& options) {
  const char* group = "Memory";
  app.add_option("--budget", options.budget,
                 "Memory limit of the step, such as 2GiB or 300MB, or least: the smallest that can "
                 "be kept; default: none")
      ->check(accepted_by(
          [](const std::string& text) {
            if (text != "least") parse_bytes(text);
          },
          std::vector<std::string>{"least"}))
      ->type_name("SIZE")
      ->group(group);
  app.add_flag("--whole-process", options.whole_process,
               "The budget is for the whole process: its fixed cost is measured and subtracted")
      ->group(group);
  add_tier_options(app, options);
  app.add_option(
         "--recompute", options.recompute,
         "Activations to recompute instead of keeping them: none, marked, blocks, sqrt, segment=N, "
         "segment=all, selective, greedy or auto; default: auto with a budget, otherwise marked")
      ->check(
          accepted_by([](const std::string& text) { Recompute::parse(text); }, recompute_names()))
      ->group(group);
  app.add_option("--optimizer", options.optimizer,
                 fmt::format("{}; default: the workload's own", fmt::join(optim::names(), ", ")))
      ->check(accepted_by([](const std::string& text) { optim::by_name(text); }, optim::names()))
      ->group(group);
  app.add_option("--accumulate", options.accumulate,
                 "Number of micro-batches that a step is divided into, or auto: the fastest number "
                 "that keeps the budget")
      ->check([](const std::string& text) -> std::string {
        const bool number = !text.empty() && text.size() < 7 && text[0] != '0' &&
                            text.find_first_not_of("0123456789") == std::string::npos;
        return number || text == "auto"
                   ? ""
                   : fmt::format(
                         "\"{}\" is neither a number of micro-batches, 1 to 999999, nor "
                         "auto{}",
                         text, did_you_mean(text, {"auto"}));
      })
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--precision", options.precision,
         "fp32; fp16 or bf16: half precision with weights in float32; pure-bf16: weights in "
         "bfloat16 too; split-bf16: weights in bfloat16 and, separately, the bits that complete "
         "them to float32; fp8: the same with 8-bit factors of products inside blocks")
      ->check(
          accepted_by([](const std::string& text) { precision_by_name(text); }, precision_names()))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--tf32", options.tf32,
               "On a GPU: compute float32 products on tensor cores, with factors rounded to TF32")
      ->group(group);
  app.add_option("--lanes", options.lanes,
                 "On a GPU, 2: run updates, and sums that only updates read, on a second stream; "
                 "1: one stream; default: 2")
      ->check(member_of({"1", "2"}))
      ->group(group);
  app.add_option("--loss-walks", options.loss_walks,
                 "On a GPU: how often the fused loss computes its logits. 1 is faster, 2 takes "
                 "less memory; auto, the default, is the fastest that keeps the budget")
      ->check(member_of({"auto", "1", "2"}))
      ->group(group);
  add_without_option(app, options)->group(group);
  app.add_option("--rounding", options.rounding,
                 "How weights in pure-bf16 are rounded; default: stochastic")
      ->check(member_of({"stochastic", "kahan", "nearest"}))
      ->group(group);
  app.add_option("--master-bits", options.master_bits,
                 "Bits that complete each weight in split-bf16 and fp8; default: 16")
      ->check(member_of({"8", "16"}))
      ->group(group);
  app.add_option("--activation-bits", options.activation_bits,
                 "Keep what backward reads of norms, GELU, SiLU, attention and products in 8 bits, "
                 "which rounds gradients (docs/techniques/activation-bits.md); default: its own "
                 "dtype")
      ->check(member_of({"8"}))
      ->group(group);
  app.add_option("--clip", options.clip,
                 "Scale gradients down to this global norm; default: no clipping")
      ->check(FiniteNumber::positive())
      ->group(group);
  app.add_option("--clip-by", options.clip_by,
                 "Which norm --clip uses. this-norm, the default: that of this step, for which all "
                 "gradients are kept; two-backwards: the same, from an additional backward pass; "
                 "last-norm: that of the previous step")
      ->check(member_of({"this-norm", "two-backwards", "last-norm"}))
      ->needs("--clip")
      ->group(group);
  app.add_option("--on-nan", options.on_nan,
                 "If a loss is infinite or NaN. stop: end with unchanged weights, and name the "
                 "module where it begins; skip: skip the step, also if only gradients are not "
                 "finite, for which all gradients are kept; ignore: continue")
      ->check(member_of({"stop", "skip", "ignore"}))
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--device", options.device,
         "cpu, cuda, cuda:N, or a file that describes the device to plan for (see ebb probe)")
      ->check([](const std::string& text) -> std::string {
        if (named_device(text) || fs::is_regular_file(text)) return {};
        return fmt::format("\"{}\" is neither cpu nor cuda nor a file that describes a device{}",
                           text, did_you_mean(text, {"cpu", "cuda"}));
      })
      ->transform(drivable_device)
      ->capture_default_str()
      ->group(group);
  add_sparsity_options(app, options.sparsity);
  app.add_flag("--huge-pages", options.machine.huge_pages, "Request pages of 2 MiB; default: no")
      ->group(group);
  app.add_flag("--lock-memory", options.machine.lock_memory,
               "Request that memory is never paged out; default: no")
      ->group(group);
  app.add_flag("--pin-threads", options.machine.pin_threads,
               "Request a core for every thread; default: no")
      ->group(group);
}

void remove_running_options(CLI::App& app) {
  for (const char* name : {"--lock-memory", "--pin-threads"})
    app.remove_option(app.get_option(name));
}

Device device_of(const PlanningOptions& options) {
  if (const std::optional<Device> here = named_device(options.device))
    return options.device == "cuda" ? device::cuda(options.gpu) : *here;
  const bool planned_as_it_is = options.only_plans && cuda::built() &&
                                io::load_device(options.device).kind == Device::Kind::cuda;
  return planned_as_it_is ? device::cuda(0) : device::cpu;
}

CompileOptions device_options(const PlanningOptions& options, const Rates& rates) {
  check_whole_process(options);
  if (device_of(options).kind != Device::Kind::cuda)
    for (const auto& [given, option] : {std::pair{options.tf32, "--tf32"},
                                        {options.lanes.has_value(), "--lanes"},
                                        {options.loss_walks.has_value(), "--loss-walks"}})
      if (given)
        throw UsageError(
            fmt::format("{} is for a GPU, but the device is {}", option, options.device));
  if (options.only_plans && rates.kind == Device::Kind::cuda && !cuda::built())
    std::cerr << "ebb: this build has no CUDA; plans use the CPU's kernels" << std::endl;
  for (const Pass& pass : all_passes())
    if (pass.only_on && *pass.only_on != device_of(options).kind &&
        std::ranges::find(options.without, pass.name) != options.without.end())
      throw UsageError(fmt::format("--without {} is for a GPU, but the device is {}", pass.name,
                                   options.device));
  const std::string walks = options.loss_walks.value_or("auto");
  CompileOptions compile;
  compile.machine = options.machine;
  if (walks != "auto")
    compile.variants["linear_cross_entropy_joint"] = walks == "1" ? "one_walk" : "two_walks";
  compile.passes = passes_without(all_pass_names(), options.without);
  if (options.activation_bits) compile.passes = with_activation_codes(*compile.passes);
  compile.plan.rates = rates;
  if (!named_device(options.device))
    compile.plan.tuning = std::make_shared<const Tuning>(io::load_tuning(options.device));
  compile.tell = [](const std::string& what) { std::cerr << "ebb: " << what << std::endl; };
  compile.plan.tf32 = options.tf32;
  compile.plan.lanes = options.lanes.value_or(compile.plan.lanes);
  return compile;
}

ImageLayout fastest_layout(Device device, Precision precision, bool tf32) {
  const bool tensor_cores =
      device.kind == Device::Kind::cuda && (tf32 || precision != Precision::fp32);
  return tensor_cores ? ImageLayout::channels_last : ImageLayout::channels_first;
}

workloads::Options placed(const workloads::Options& options, const PlanningOptions& planning) {
  const Precision precision = precision_by_name(planning.precision);
  workloads::Options result = options;
  result.device = device_of(planning);
  result.dtype = parameter_dtype(precision);
  if (!result.layout && uses(result, workloads::Setting::layout))
    result.layout = fastest_layout(result.device, precision, planning.tf32);
  if (precision == Precision::fp8 && result.base)
    throw UsageError(
        fmt::format("--precision fp8 is for products with bfloat16 weights, but --base {} stores "
                    "them in another form: use --precision split-bf16",
                    *result.base));
  if (planning.sparsity.any() && (result.lora || result.adapter))
    throw UsageError(
        fmt::format("--sparsity is for trained weights, but {} trains adapters beside frozen "
                    "weights: leave out one of them",
                    result.lora ? "--lora" : "--adapter"));
  if (planning.prune.share && (result.lora || result.adapter || result.base))
    throw UsageError(
        "--prune removes trained weights, but adapters do not train the model's weights: leave out "
        "one of them");
  if (planning.loss_walks && !uses(result, workloads::Setting::fused_loss))
    throw UsageError(
        fmt::format("--loss-walks is for the fused loss, which {} does not have; it is for {}",
                    result.name, fmt::join(users_of(workloads::Setting::fused_loss), ", ")));
  return result;
}

namespace {

void check_clipping(const PlanningOptions& options) {
  if (options.clip_by == "last-norm" && options.precision == "fp16")
    throw UsageError(
        "--clip-by last-norm cannot go with --precision fp16, where only the norm of this step "
        "tells whether it overflowed: use --clip-by this-norm");
  const bool parts = options.accumulate != "1" && options.accumulate != "auto";
  if (options.clip_by == "two-backwards" && parts)
    throw UsageError(
        fmt::format("--clip-by two-backwards cannot go with --accumulate {}, which keeps all "
                    "gradients anyway: use --clip-by this-norm",
                    options.accumulate));
}

}  // namespace

TrainOptions step_options(const PlanningOptions& options) {
  TrainOptions train;
  train.precision = precision_by_name(options.precision);
  check_clipping(options);
  check_forms(options, {train.precision});
  train.form = form_of(options, train.precision);
  train.activation_bits = options.activation_bits;
  train.guard = options.on_nan == "stop"   ? UpdateGuard::loss
                : options.on_nan == "skip" ? UpdateGuard::gradients
                                           : UpdateGuard::none;
  train.clip_norm = options.clip;
  train.clip_by = options.clip_by == "last-norm"       ? ClipBy::last_norm
                  : options.clip_by == "two-backwards" ? ClipBy::two_backwards
                                                       : ClipBy::this_norm;
  train.ranks = rank_options(options);
  train.sparse = sparse_training(options.sparsity);
  if (train.sparse && options.ranks > 1)
    throw UsageError("--sparsity is for one rank, but there are several");
  return train;
}

optim::Optimizer optimizer_of(const workloads::Workload& task, const PlanningOptions& options,
                              std::optional<double> rate) {
  const bool pure = precision_by_name(options.precision) == Precision::pure_bf16;
  const optim::Optimizer own = rate ? task.optimizer().with_rate(*rate) : task.optimizer();
  const std::string_view rule = own.rule().name();
  // In pure bfloat16, moments are bfloat16 too; SGD's momentum, which is a sum, stays in float32.
  if (!options.optimizer && !(pure && (rule == "adam" || rule == "adamw"))) return own;
  const std::optional<double> given = options.optimizer ? rate : own.rate();
  return optim::by_name(options.optimizer.value_or(std::string(rule)), given, pure ? bf16 : f32)
      .with(optim::no_decay_for_vectors());
}

Rates rates_for(const PlanningOptions& options) {
  return named_device(options.device) ? io::rates_here(device_of(options))
                                      : io::load_device(options.device);
}

CompileOptions compile_options(const PlanningOptions& options, std::uint64_t seed,
                               const Rates& rates, Bytes fixed, Bytes evaluation) {
  CompileOptions compile = device_options(options, rates);
  compile.seed = seed;
  if (options.recompute) {
    compile.plan.recompute = Recompute::parse(*options.recompute);
    check_recompute("--recompute", compile.plan.recompute,
                    options.budget.has_value() || options.tries_budgets);
  }
  // If nothing is left for the step, planning reports which budget could be kept.
  if (options.budget && *options.budget != "least")
    compile.plan.budget = std::max(Bytes{}, parse_bytes(*options.budget) - evaluation -
                                                (options.whole_process ? fixed : Bytes{}));
  use_tiers(options, device_of(options), compile);
  compile.communicator = options.communicator;
  return compile;
}

Bytes measure_fixed_cost(const PlanningOptions& planning, Bytes still_to_come) {
  check_whole_process(planning);
  // Libraries take buffers for their threads when first used; products of this size fill them.
  const Tensor x = random_uniform({1024, 1024}, -1.0, 1.0, f32);
  eval(sum(matmul(x, x)));
  const Tensor image = random_uniform({4, 16, 32, 32}, -1.0, 1.0, f32);
  eval(sum(conv2d(image, random_uniform({16, 16, 3, 3}, -1.0, 1.0, f32))));
  give_back_freed_memory();
  const Bytes budget = parse_bytes(*planning.budget);
  if (const Bytes taken = process_peak(); taken > budget)
    throw MemoryError(
        fmt::format("a budget of {} for the whole process cannot be kept: its fixed cost alone, "
                    "including reading the data, is {}",
                    to_string(budget), to_string(taken)));
  constexpr Bytes code = 24_MiB;  // of kernels that have not run yet
  return process_resident() + code + still_to_come;
}

Bytes fixed_cost_of(const workloads::Options& options, const PlanningOptions& planning) {
  const auto task = workloads::make_workload(placed(options, planning));
  return measure_fixed_cost(
      planning, loader_bytes(*task->train, workloads::training_loader(
                                               task->batch_size, options.seed, options.device)) +
                    bytes_of_step_to_come(task->model().parameters().size()));
}

Bytes loader_bytes(const data::Dataset& dataset, const data::LoaderOptions& options) {
  Bytes batch;
  for (const TensorType& type : dataset.types(options.batch)) batch += type.bytes();
  // A batch in preparation exists twice: as it is gathered and as tensors.
  const std::int64_t batches = options.prefetch + 1 + 2 * options.workers;
  const Bytes orders{
      options.shuffle ? 2 * dataset.size() * static_cast<std::int64_t>(sizeof(std::int64_t)) : 0};
  return batches * batch + orders;
}

void settle_budget(const PlanningOptions& options, const Graph& graph, CompileOptions& compile) {
  if (options.budget == "least") compile.plan.budget = least_budget(graph, compile);
}

void check_accumulation(std::int64_t parts, std::int64_t batch) {
  if (parts > batch)
    throw UsageError(
        fmt::format("--accumulate {} is more than the batch has items: a batch of {} can be "
                    "divided into at most {} micro-batches",
                    parts, batch, batch));
}

namespace {

std::unique_ptr<TrainStep> planned_step(workloads::Workload& task, const PlanningOptions& planning,
                                        std::int64_t accumulate) {
  TrainOptions train = step_options(planning);
  train.accumulate = accumulate;
  train.weight = task.weight;
  return std::make_unique<TrainStep>(
      task.model(), optimizer_of(task, planning), [&task](const Batch& b) { return task.loss(b); },
      train);
}

}  // namespace

std::int64_t fastest_parts(std::int64_t batch,
                           const std::function<double(std::int64_t parts)>& predicted_ms) {
  constexpr std::int64_t most = 64;
  std::int64_t best = 1;
  double best_ms = std::numeric_limits<double>::infinity();
  bool can_be_made = false;
  std::exception_ptr why_not;
  for (std::int64_t parts = 1; parts <= std::min(most, batch); parts *= 2) {
    try {
      const double ms = predicted_ms(parts);
      can_be_made = true;
      if (ms < best_ms) best = parts, best_ms = ms;
    } catch (const BudgetError&) {  // more parts may fit
      can_be_made = true;
      if (best_ms == std::numeric_limits<double>::infinity()) best = parts;
    } catch (const ValueError&) {  // such as micro-batches whose tokens fp8 cannot multiply
      if (!why_not) why_not = std::current_exception();
    }
  }
  if (!can_be_made) std::rethrow_exception(why_not);
  return best;
}

Graph trace_step(workloads::Workload& task, const PlanningOptions& planning,
                 std::int64_t accumulate) {
  check_accumulation(accumulate, task.batch_size);
  return planned_step(task, planning, accumulate)
      ->trace(own_types(*task.train, task.batch_size, planning));
}

TracedWorkload trace_workload(const workloads::Options& options, const PlanningOptions& planning,
                              std::int64_t accumulate) {
  std::unique_ptr<workloads::Workload> made = workloads::make_workload(placed(options, planning));
  workloads::Workload& task = *made;
  check_accumulation(accumulate, task.batch_size);
  std::unique_ptr<TrainStep> step = planned_step(task, planning, accumulate);
  Graph graph = step->trace(own_types(*task.train, task.batch_size, planning));
  return {std::move(made), task.batch_size, step->optimizer(), std::move(graph), std::move(step)};
}

void settle_shard(const workloads::Options& options, PlanningOptions& planning,
                  const CompileOptions& compile) {
  planning.shard = fastest_shard(planning, [&](const PlanningOptions& tried) {
    const TracedWorkload traced = trace_workload(options, tried, 1);
    const PlanResult result = try_plan_program(traced.graph, compile);
    return result.plan ? std::optional(result.plan->predicted_ms) : std::nullopt;
  });
}

namespace {

// The modules inside blocks whose products are not in fp8, where that is asked for.
std::set<std::string> modules_outside_fp8(const Graph& graph, const PlanningOptions& planning) {
  std::set<std::string> paths;
  if (precision_by_name(planning.precision) == Precision::fp8)
    for (const Fp8Products::Other& other : fp8_products(graph).others) paths.insert(other.path);
  return paths;
}

}  // namespace

std::int64_t accumulation(workloads::Workload& task, const PlanningOptions& planning,
                          const CompileOptions& compile) {
  if (planning.accumulate != "auto") return std::stoll(planning.accumulate);
  std::optional<std::set<std::string>> in_few_parts;  // modules outside fp8
  return fastest_parts(task.batch_size, [&](std::int64_t parts) {
    const Graph graph = trace_step(task, planning, parts);
    std::set<std::string> outside = modules_outside_fp8(graph, planning);
    if (!in_few_parts)
      in_few_parts = std::move(outside);
    else if (outside != *in_few_parts)
      throw ValueError("some micro-batches have sizes that fp8 cannot multiply");
    return plan_program(graph, compile).predicted_ms;
  });
}

std::int64_t accumulation(const workloads::Options& options, const PlanningOptions& planning,
                          const CompileOptions& compile) {
  if (planning.accumulate != "auto") return std::stoll(planning.accumulate);
  const auto task = workloads::make_workload(placed(options, planning));
  return accumulation(*task, planning, compile);
}

nlohmann::ordered_json plan_fields(const Plan& plan) {
  nlohmann::ordered_json categories;
  for (int c = 0; c < category_count; ++c)
    categories[std::string(name(static_cast<Category>(c)))] =
        plan.at_peak[static_cast<Category>(c)].count;
  return {{"planned_peak_bytes", plan.peak.count},
          {"peak_by_category", categories},
          {"arena_bytes", plan.arena().count},
          {"predicted_step_ms", plan.predicted_ms},
          {"overhead", plan.overhead()},
          {"fragmentation", plan.fragmentation()},
          {"recomputed_nodes", plan.recomputed_nodes()},
          {"plan_ms", plan.made_in_ms}};
}

nlohmann::ordered_json data_fields(const std::map<std::string, workloads::DataPart>& parts) {
  nlohmann::ordered_json all;
  for (const auto& [name, part] : parts) {
    all[name] = {{"source", part.source}, {"items", part.items}};
    if (part.tokens) all[name]["tokens"] = *part.tokens;
  }
  return all;
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
      to_string(plan.arena()), plan.fragmentation());
  return text + tier_text(plan);
}

}  // namespace ebb::cli
