#include "cli/ranks.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/member_of.h"
#include "cli/numbers.h"
#include "cli/outputs.h"
#include "cli/trainee.h"
#include "cli/verb.h"
#include "core/backend.h"
#include "core/cuda/cuda.h"
#include "core/cuda/rank_link.h"
#include "core/hash64.h"
#include "core/json.h"
#include "core/processors.h"
#include "ebb/communicator.h"
#include "ebb/data/part.h"
#include "ebb/dist/ranks.h"
#include "ebb/io/atomic_file.h"
#include "ebb/io/device_file.h"
#include "ebb/probe.h"
#include "ebb/threads.h"
#include "ebb/version.h"
#include "ops/collective/collective.h"

namespace ebb::cli {

namespace fs = std::filesystem;

void add_rank_options(CLI::App& app, PlanningOptions& options) {
  const char* group = "Ranks";
  app.add_option("--leaves", options.leaves,
                 "Micro-batches of equal size whose gradients are summed in one tree: a run with "
                 "the same number gives the same bits on any number of ranks; default with several "
                 "ranks: one a rank")
      ->check(WholeNumber(1, 1000000))
      ->type_name("N")
      ->group(group);
  app.add_option("--shard", options.shard,
                 "What is divided among the ranks. 0: nothing; 1: optimizer state, and the work of "
                 "updates; 2: also gradients; 3: also weights; auto: the fastest of these within "
                 "the budget")
      ->check(member_of({"0", "1", "2", "3", "auto"}))
      ->capture_default_str()
      ->group(group);
  add_option(app, "--reduce", options.reduce,
             "Order of sums over ranks. exact: one tree, so that the number of ranks changes no "
             "bit; fast: NCCL's own order, only on GPUs")
      .one_of({"exact", "fast"})
      .show_default()
      .group(group);
}

void add_ranks_option(CLI::App& app, PlanningOptions& options) {
  app.add_option("--ranks", options.ranks, "Ranks to plan for, each with its part of the batch")
      ->check(WholeNumber(1, 1000000))
      ->capture_default_str()
      ->type_name("N")
      ->group("Ranks");
}

namespace {

thread_local std::shared_ptr<Communicator> rank_of_thread;

}  // namespace

ThreadRank::ThreadRank(std::shared_ptr<Communicator> communicator) {
  rank_of_thread = std::move(communicator);
}
ThreadRank::~ThreadRank() { rank_of_thread.reset(); }
const std::shared_ptr<Communicator>& ThreadRank::here() { return rank_of_thread; }

bool in_one_process(const PlanningOptions& options) {
  return options.communicator && options.communicator->transport() == "threads";
}

void join_ranks(const CLI::App& app, PlanningOptions& options) {
  if (ThreadRank::here()) {
    if (ThreadRank::here()->size() == 1) return;
    options.communicator = ThreadRank::here();
  } else {
    const std::optional<dist::RankPlace> place = dist::place_in_environment();
    if (!place) return;
    if (const int gpus = cuda::device_count(); gpus > 0) options.gpu = place->local_rank % gpus;
    options.communicator = dist::connect(*place);
  }
  options.ranks = options.communicator->size();
  options.rank = options.communicator->rank();
  if (app.get_option("--threads")->count() == 0)
    set_threads(dist::cores_of_a_rank(*options.communicator).count);
}

void keep_to_own_cores(const PlanningOptions& options) {
  if (!options.communicator) return;
  if (in_one_process(options))
    throw UsageError(
        "--pin-threads is for the threads of one rank, but these ranks are threads of one process");
  const dist::RankCores own = dist::cores_of_a_rank(*options.communicator);
  if (own.processors.empty())
    throw UsageError(
        "--pin-threads: this host has more ranks than cores: leave it out, or start fewer ranks");
  keep_to(own.processors);
}

void refuse_ranks(const PlanningOptions& options, const std::string& why) {
  if (options.ranks > 1) throw UsageError("several ranks: " + why);
}

void settle_ranks(PlanningOptions& options) {
  if (options.shard == "auto" && options.ranks == 1) options.shard = "0";
  if (options.shard != "0" && options.ranks == 1)
    throw UsageError(
        "--shard divides state among ranks, but there is one rank: leave it out, or start several "
        "with ebb launch");
  if (options.ranks > 1 && !options.leaves) options.leaves = options.ranks;
  if (!options.leaves) return;
  if (options.ranks > *options.leaves)
    throw UsageError(fmt::format(
        "--leaves {}: there are {} ranks, and each needs at least one leaf: use a larger number",
        *options.leaves, options.ranks));
  if (options.accumulate != "1")
    throw UsageError(
        fmt::format("--accumulate {}: --leaves already divides the batch, into {} parts: leave out "
                    "--accumulate",
                    options.accumulate, *options.leaves));
  if (options.ranks == 1) return;
  if (options.whole_process)
    throw UsageError(
        "--whole-process is for one process: with several ranks the budget is for each rank's "
        "plan");
  if (device_of(options).kind == Device::Kind::cuda) {
    if (in_one_process(options))
      throw UsageError(
          "--in-process: ranks that are threads of one process run on the CPU alone; without it "
          "each rank is a process with a GPU of its own");
    if (options.device.starts_with("cuda:"))
      throw UsageError(
          fmt::format("--device {} names one GPU, but there are {} ranks: use --device cuda, which "
                      "gives each rank its own",
                      options.device, options.ranks));
    if (!options.only_plans) cuda::require_nccl();
  } else if (options.reduce == "fast") {
    throw UsageError(
        "--reduce fast uses NCCL, which needs GPUs: ranks on the CPU support only --reduce exact");
  }
}

void refuse_fast_alone(const PlanningOptions& options) {
  if (options.ranks == 1 && options.reduce == "fast")
    throw UsageError("--reduce fast is for sums over ranks, but there is one rank: leave it out");
}

bool weights_are_ranges(const PlanningOptions& options) {
  return options.shard == "3" && options.communicator;
}

std::string weight_of_any_rank(const PlanningOptions& options, std::string own) {
  if (!weights_are_ranges(options)) return own;
  for (const std::string& weight :
       options.communicator->all_gather(own, "the search for values that are not finite"))
    if (!weight.empty()) return weight;
  return {};
}

bool leads(const PlanningOptions& options) { return options.rank == 0; }

RankOptions rank_options(const PlanningOptions& options) {
  RankOptions ranks;
  ranks.leaves = options.leaves.value_or(0);
  ranks.count = options.ranks, ranks.rank = options.rank;
  ranks.shard = options.shard == "1"   ? Shard::state
                : options.shard == "2" ? Shard::gradients
                : options.shard == "3" ? Shard::parameters
                                       : Shard::nothing;
  ranks.reduce = options.reduce == "fast" ? Reduce::fast : Reduce::exact;
  return ranks;
}

std::string fastest_shard(const PlanningOptions& options,
                          const std::function<std::optional<double>(const PlanningOptions&)>& ms) {
  if (options.shard != "auto") return options.shard;
  PlanningOptions tried = options;
  std::optional<double> best_ms;
  std::string best;
  for (const char* stage : {"0", "1", "2", "3"}) {
    tried.shard = stage;
    try {
      const std::optional<double> found = ms(tried);
      if (best.empty() || (found && (!best_ms || *found < *best_ms))) best = stage, best_ms = found;
      // If no stage keeps the budget, the stage that takes least throws the error.
      if (!best_ms) best = stage;
    } catch (const ValueError&) {
      if (best.empty()) throw;
      break;  // the optimizer's state cannot be sharded
    }
  }
  return best;
}

std::vector<TensorType> own_types(const data::Dataset& dataset, std::int64_t batch,
                                  const PlanningOptions& options) {
  return dataset.types(options.leaves ? data::own_items(batch, rank_options(options)) : batch);
}

Rates shared_rates(const PlanningOptions& options) {
  if (!options.communicator) return rates_for(options);
  const bool first = leads(options);
  const Rates own = first ? rates_for(options) : Rates{};
  const std::string text = options.communicator->broadcast(first ? io::describe_device(own) : "", 0,
                                                           "the device's rates");
  if (first) return own;
  const fs::path file =
      fs::temp_directory_path() / fmt::format("ebb-rates-{}-{}.json", getpid(), options.rank);
  {
    io::AtomicFile written(file);
    written.write(text);
    written.commit();
  }
  const Rates rates = io::load_device(file);
  std::error_code none;
  fs::remove(file, none);
  return rates;
}

void plan_with_shared_tuning(
    const PlanningOptions& options,
    const std::function<void(const std::shared_ptr<const Tuning>& tuning)>& plan) {
  const Device device = device_of(options);
  if (!options.communicator || device.kind != Device::Kind::cuda) return plan(nullptr);
  const auto share = [&] {
    const std::string own = leads(options) ? tuning_text(*known_tuning(device)) : "";
    return options.communicator->broadcast(own, 0, "the tuning of the GPU");
  };
  if (!leads(options))
    return plan(std::make_shared<const Tuning>(parse_tuning(share(), "the tuning of rank 0")));
  try {
    plan(nullptr);
  } catch (const Error&) {  // the other ranks find the same error
    share();
    throw;
  }
  share();
}

namespace {

// The difference between a text and rank 0's: for JSON objects, the first field that differs.
std::string difference(const std::string& own, const std::string& first) {
  if (own.starts_with('{') && first.starts_with('{')) {
    const nlohmann::json a = parse_json(own), b = parse_json(first);
    for (const auto& [name, value] : a.items())
      if (!b.contains(name) || b[name] != value)
        return fmt::format("{} is {} instead of {}", name, json_excerpt(value),
                           b.contains(name) ? json_excerpt(b[name]) : "missing");
  }
  return fmt::format("{} instead of {}", own, first);
}

}  // namespace

void require_agreement(const PlanningOptions& options, const std::vector<Agreed>& all) {
  if (!options.communicator) return;
  for (const Agreed& one : all) {
    const std::vector<std::string> texts =
        options.communicator->all_gather(one.text, "the comparison of " + one.name);
    for (std::size_t r = 1; r < texts.size(); ++r)
      if (texts[r] != texts[0])
        throw RankError(static_cast<int>(r),
                        fmt::format("rank {} has another {} than rank 0: {}", r, one.name,
                                    difference(texts[r], texts[0])));
  }
}

void require_agreement(const PlanningOptions& options, const Trainee& trainee,
                       const std::string& plan) {
  if (!options.communicator) return;
  // GPUs of another model would compute other bits.
  const Device device = trainee.memory().plan.device;
  const bool gpu = device.kind == Device::Kind::cuda;
  require_agreement(options, {{"version", std::string(version())},
                              {"specification", workloads::to_json(trainee.spec())},
                              {"data", nlohmann::json(trainee.data_fingerprint()).dump()},
                              {"kind of GPU", gpu ? backend_of(device).name(device) : "none"},
                              {"plan", plan}});
}

std::string plan_fingerprint(const Plan& plan) {
  Hash64 hash;
  for (const Instruction& i : plan.instructions) {
    hash.add(fmt::format("{} {}", i.op->name(), i.lane.index()));
    for (const std::vector<Operand>* operands : {&i.inputs, &i.outputs})
      for (const Operand& o : *operands)
        hash.add(fmt::format(" {}+{}:{}", o.buffer.index(), o.layout.offset, to_string(o.type)));
    if (is_collective(*i.op)) hash.add(i.attributes.text());
  }
  for (const Buffer& b : plan.buffers)
    hash.add(fmt::format("{} {}\n", b.size.count, b.place.offset.count));
  return hex(hash.value());
}

nlohmann::ordered_json gather_fields(const PlanningOptions& options,
                                     const nlohmann::ordered_json& own) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!options.communicator) {
    all.push_back(own);
    return all;
  }
  for (const std::string& text : options.communicator->all_gather(json_text(own), "the reports"))
    all.push_back(parse_ordered_json(text));
  return all;
}

std::vector<Pulse> exchange_pulses(const PlanningOptions& options, const Pulse& own) {
  std::vector<Pulse> all(static_cast<std::size_t>(options.communicator ? options.ranks : 1), own);
  if (options.communicator)
    options.communicator->all_gather(std::as_bytes(std::span(&own, 1)),
                                     std::as_writable_bytes(std::span(all)),
                                     "the question whether to stop");
  return all;
}

int any_signal(const std::vector<Pulse>& pulses) {
  std::int64_t signal = 0;
  for (const Pulse& pulse : pulses) signal = std::max(signal, pulse.signal);
  return static_cast<int>(signal);
}

void log_pulses(const std::vector<Pulse>& pulses, std::int64_t step, Outputs& outputs) {
  constexpr std::size_t most = 64;
  const auto log = [&](const std::string& who, const Pulse& pulse) {
    outputs.log(fmt::format("ranks/{}/step_ms", who), step, pulse.step_ms);
    outputs.log(fmt::format("ranks/{}/waited_ms", who), step, pulse.waited_ms);
  };
  if (pulses.size() == 1) return;
  const auto slowest =
      std::min_element(pulses.begin(), pulses.end(),
                       [](const Pulse& a, const Pulse& b) { return a.waited_ms < b.waited_ms; });
  if (pulses.size() > most) {
    outputs.log("ranks/slowest", step, static_cast<double>(slowest - pulses.begin()));
    return log("slowest", *slowest);
  }
  for (std::size_t r = 0; r < pulses.size(); ++r) log(std::to_string(r), pulses[r]);
}

}  // namespace ebb::cli
