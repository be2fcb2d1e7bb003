// How a process finds its place among the ranks, from the variables that launchers set.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "ebb/dist/ranks.h"
#include "ebb/error.h"
#include "ebb/threads.h"
#include "support/command_line.h"
#include "support/last_json.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;
using Variables = std::vector<std::pair<std::string, std::string>>;

std::optional<dist::RankPlace> place_with(const Variables& variables) {
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  std::optional<dist::RankPlace> place;
  std::exception_ptr error;
  try {
    place = dist::place_in_environment();
  } catch (...) {
    error = std::current_exception();
  }
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
  if (error) std::rethrow_exception(error);
  return place;
}

Variables slurm(const Variables& others) {
  Variables all{{"SLURM_PROCID", "5"},
                {"SLURM_NTASKS", "7"},
                {"SLURM_STEP_ID", "0"},
                {"SLURM_JOB_ID", "4711"}};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

TEST(Starters, SlurmNamesTheFirstNode) {
  const auto address = [](const std::string& nodes) {
    return place_with(slurm({{"SLURM_STEP_NODELIST", nodes}}))->address;
  };
  EXPECT_EQ(address("alone"), "alone");
  EXPECT_EQ(address("first,second[1-2]"), "first");
  EXPECT_EQ(address("node[003-005,9],login"), "node003");
  EXPECT_EQ(address("node[7],x"), "node7");
  EXPECT_EQ(address("rack[1-2]-node[08,12]"), "rack1-node08");
  EXPECT_EQ(address("node[3"), "node3");  // damaged
  // The nodes of the job, if those of the step are missing.
  EXPECT_EQ(place_with(slurm({{"SLURM_JOB_NODELIST", "a[2-3]"}}))->address, "a2");
}

TEST(Starters, SlurmTellsTheTasksOfANode) {
  const auto local = [](const std::string& tasks, const std::string& node) {
    return place_with(slurm({{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", node}}))
        ->local_size;
  };
  EXPECT_EQ(local("3(x2),1", "0"), 3);
  EXPECT_EQ(local("3(x2),1", "1"), 3);
  EXPECT_EQ(local("3(x2),1", "2"), 1);
  EXPECT_EQ(local("7", "0"), 7);
  EXPECT_EQ(local("7", "1"), 7);    // not told: all tasks
  EXPECT_EQ(local("3(x", "0"), 7);  // damaged
  EXPECT_EQ(local("many", "0"), 7);
}

// Two simultaneous steps of a job do not connect to each other; the ranks of one step do.
TEST(Starters, EveryStepOfAJobHasItsPlace) {
  const auto at = [](const std::string& rank, const std::string& step) {
    return *place_with({{"SLURM_PROCID", rank},
                        {"SLURM_NTASKS", "8"},
                        {"SLURM_STEP_NUM_TASKS", "2"},
                        {"SLURM_STEP_ID", step},
                        {"SLURM_JOB_ID", "12"},
                        {"SLURM_STEP_NODELIST", "n[1-2]"}});
  };
  const dist::RankPlace first = at("0", "0"), second = at("1", "0"), other = at("0", "1");
  EXPECT_EQ(first.size, 2);  // the job has 8 tasks, this step of it 2
  EXPECT_EQ(first.port, second.port);
  EXPECT_EQ(first.token, second.token);
  EXPECT_NE(first.port, other.port);
  EXPECT_NE(first.token, other.token);
  EXPECT_GE(first.port, 20000);
  EXPECT_LT(first.port, 32000);
}

// The variables of PMI alone mean MPI, but srun sets them too.
TEST(Starters, TasksOfSrunNeedNoMpi) {
  const Variables pmi{{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}};
  EXPECT_EQ(place_with(pmi)->address, "");
  Variables both = slurm({{"SLURM_STEP_NODELIST", "n[1-2]"}});
  both.insert(both.end(), pmi.begin(), pmi.end());
  EXPECT_EQ(place_with(both)->address, "n1");
  EXPECT_EQ(place_with(both)->starter, "srun");
  // Under an mpirun that started its daemons by srun, ranks have the daemon's variables of Slurm.
  both.back().second = "12";
  EXPECT_EQ(place_with(both)->address, "");
  EXPECT_EQ(place_with(both)->size, 12);
  // A batch job without srun is one process.
  EXPECT_FALSE(place_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}}));
}

TEST(Starters, RanksShareTheCoresOfTheirHost) {
  for (const int count : {1, 2, 3}) {
    const auto cores = on_threads<dist::RankCores>(
        count, [](const auto& ranks) { return dist::cores_of_a_rank(*ranks); });
    std::set<int> all;  // no core is given twice
    for (const dist::RankCores& own : cores) {
      EXPECT_EQ(own.count, std::max(1, physical_cores() / count));
      EXPECT_EQ(own.processors.size(), static_cast<std::size_t>(physical_cores() / count));
      for (const int processor : own.processors) EXPECT_TRUE(all.insert(processor).second);
    }
  }
}

// A stand-in for srun: starts the tasks of a step on this host, with the variables that srun sets.
constexpr const char* fake_srun = R"(#!/bin/sh
# srun -n N COMMAND...
tasks=$2; shift 2
task=0; running=
while [ $task -lt $tasks ]; do
  SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=0 \
    SLURM_NTASKS=$tasks SLURM_STEP_NUM_TASKS=$tasks SLURM_NNODES=1 SLURM_STEP_TASKS_PER_NODE=$tasks \
    SLURM_JOB_NODELIST=localhost SLURM_STEP_NODELIST=localhost PMI_RANK=$task PMI_SIZE=$tasks \
    "$@" &
  running="$running $!"
  task=$((task + 1))
done
code=0
for one in $running; do wait $one || code=$?; done
exit $code
)";

TEST(Starters, RanksOfSrunTrain) {
  const TemporaryFolder folder;
  const std::string script = (folder / "srun").string();
  std::ofstream(script) << fake_srun;
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const std::string train =
      " train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 61 "
      "--batch 6 --leaves 3 --threads 1 --steps 3 --eval-batches 0 --json ";
  const Json alone = last_json(run(train)),
             tasks =
                 last_json(run_command(script + " -n 3 '" + program() + "'" + train + "--shard 1"));
  EXPECT_EQ(tasks["ranks"], 3);
  EXPECT_EQ(tasks["losses"], alone["losses"]);
  // An error of the command is reported by every task.
  EXPECT_EQ(run_command(script + " -n 2 '" + program() + "' train --workload mlp --batch 9").code,
            1);
}

}  // namespace
}  // namespace ebb::test
