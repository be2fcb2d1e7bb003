// Runs on several ranks: options, this process's rank, and what the ranks agree on and report.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/planning.h"

namespace ebb::cli {

class Outputs;
class Trainee;

// Adds --leaves, --shard and --reduce.
void add_rank_options(CLI::App& app, PlanningOptions& options);
// Adds --ranks, for a verb that only plans.
void add_ranks_option(CLI::App& app, PlanningOptions& options);

// While it exists, commands of this thread run as one rank of several that are threads of this
// process. The other ranks notice that this one has ended when it and its commands are gone.
class ThreadRank {
 public:
  explicit ThreadRank(std::shared_ptr<Communicator> communicator);
  ~ThreadRank();
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

  static const std::shared_ptr<Communicator>& here();  // null: this thread is no such rank
};
// Whether the ranks are threads of this process.
bool in_one_process(const PlanningOptions& options);

// Connects this process with the other ranks, if it was started as one of several. Threads are
// divided among the ranks of a host, unless --threads says otherwise.
void join_ranks(const CLI::App& app, PlanningOptions& options);
// Completes and checks options once they are all known: without --leaves there is one leaf a rank.
void settle_ranks(PlanningOptions& options);
// Keeps this process to its share of the cores that several ranks may run on, for --pin-threads.
void keep_to_own_cores(const PlanningOptions& options);
// An error if --reduce fast is requested for a new run on one rank, which has no sums over ranks.
void refuse_fast_alone(const PlanningOptions& options);
// An error with this reason if there are several ranks.
void refuse_ranks(const PlanningOptions& options, const std::string& why);
bool leads(const PlanningOptions& options);  // this rank reports, logs and writes files
// Whether each rank has a range of the weights, so that all take part in reading them.
bool weights_are_ranges(const PlanningOptions& options);
// The first rank's weight that is not finite, on all ranks: if weights are ranges, each rank sees
// only its own, and all must call this. Empty if there is none.
std::string weight_of_any_rank(const PlanningOptions& options, std::string own);

RankOptions rank_options(const PlanningOptions& options);
// The stage that --shard auto stands for: among those that keep the budget the one with the fastest
// plan, and of equally fast ones the lowest. `predicted_ms` plans a step, and returns no value if
// it does not keep the budget.
std::string fastest_shard(
    const PlanningOptions& options,
    const std::function<std::optional<double>(const PlanningOptions&)>& predicted_ms);
// The types of this rank's part of a batch.
std::vector<TensorType> own_types(const data::Dataset& dataset, std::int64_t batch,
                                  const PlanningOptions& options);

// The rates that rank 0 measured or read, so that all ranks make the same plan.
Rates shared_rates(const PlanningOptions& options);

// Calls `plan`, which may tune the GPU's libraries, on rank 0 first. The other ranks get its
// tuning, so that all have the same algorithms, the same plan and the same bits. On the CPU, and on
// one rank, `plan` is simply called.
void plan_with_shared_tuning(
    const PlanningOptions& options,
    const std::function<void(const std::shared_ptr<const Tuning>& tuning)>& plan);

// What must be the same on all ranks: a name and a text or a fingerprint.
struct Agreed {
  std::string name, text;
};
// Throws a RankError that names the first rank that differs from rank 0, and the difference.
void require_agreement(const PlanningOptions& options, const std::vector<Agreed>& all);
// The same for everything that the ranks of a run must share; `plan` is the fingerprint of its
// plans.
void require_agreement(const PlanningOptions& options, const Trainee& trainee,
                       const std::string& plan);
// A fingerprint of what a plan does and where; random keys, which differ between ranks, are left
// out.
std::string plan_fingerprint(const Plan& plan);

// The fields that each rank reports at the end, as a list by rank; complete on rank 0.
nlohmann::ordered_json gather_fields(const PlanningOptions& options,
                                     const nlohmann::ordered_json& own);

// What ranks exchange between steps.
struct Pulse {
  std::int64_t signal = 0;                // the signal that asks this rank to stop; 0: none
  double step_ms = 0.0, waited_ms = 0.0;  // of the last step, and its part in exchanges
};
// The pulses of all ranks, by rank.
std::vector<Pulse> exchange_pulses(const PlanningOptions& options, const Pulse& own);
// Whether any rank has been asked to stop: the largest of their signals.
int any_signal(const std::vector<Pulse>& pulses);
// Logs the times of each rank, as ranks/0/step_ms and ranks/0/waited_ms. With more than 64 ranks,
// logs only the rank that waited least, for which the others waited.
void log_pulses(const std::vector<Pulse>& pulses, std::int64_t step, Outputs& outputs);

}  // namespace ebb::cli
