// Which rank this process is, by the variables of those who start processes.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/hash64.h"
#include "dist/mesh.h"
#include "dist/mpi_ranks.h"
#include "dist/socket_ranks.h"
#include "ebb/dist/ranks.h"

namespace ebb::dist {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  if (!text || !*text) return {};
  return std::string(text);
}

std::optional<int> number(const char* name) {
  const std::optional<std::string> text = variable(name);
  if (!text) return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || value < 0)
    throw ValueError(
        fmt::format("the variable {} must be a whole number, but is \"{}\"", name, *text));
  return value;
}

// The variables of one kind of starter.
struct Names {
  const char *starter, *rank, *size, *local_size, *local_rank;
};
constexpr Names starters[] = {
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"},
};

// The first host of a list such as "rack[1-2]-node[03-05,9],login".
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const std::size_t end = std::min(list.find_first_of("-,]", at), list.size());
    host += list.substr(at + 1, end - at - 1);
    at = std::min(list.find(']', at), list.size() - 1) + 1;
  }
  return host;
}

// Entry `node` of a list such as "4(x2),3": the tasks of every node of a Slurm step.
std::optional<int> tasks_of_node(std::string_view list, int node) {
  const auto take_number = [&]() -> std::optional<int> {
    int value = 0;
    const auto [next, error] = std::from_chars(list.data(), list.data() + list.size(), value);
    if (error != std::errc{}) return {};
    list.remove_prefix(static_cast<std::size_t>(next - list.data()));
    return value;
  };
  for (;;) {
    const std::optional<int> tasks = take_number();
    if (!tasks) return {};
    int times = 1;
    if (list.starts_with("(x")) {
      list.remove_prefix(2);
      times = take_number().value_or(0);
      if (!list.starts_with(')')) return {};
      list.remove_prefix(1);
    }
    if (node < times) return tasks;
    node -= times;
    if (!list.starts_with(',')) return {};
    list.remove_prefix(1);
  }
}

// Whether these are the variables of PMI that srun sets for its own tasks. Such a task finds the
// others without MPI. A rank of an mpirun that uses srun to start its daemons has their variables
// of Slurm, and numbers of its own.
bool set_by_srun(const Names& names, int rank, int size) {
  const std::optional<int> tasks = number("SLURM_STEP_NUM_TASKS");
  return std::string_view(names.rank) == "PMI_RANK" && variable("SLURM_STEP_ID") &&
         number("SLURM_PROCID") == rank && (tasks ? tasks : number("SLURM_NTASKS")) == size;
}

// Slurm names the nodes of a step, and no port: one that depends on the step.
void find_in_slurm(RankPlace& place) {
  const std::string tasks =
      variable("SLURM_STEP_TASKS_PER_NODE").value_or(variable("SLURM_TASKS_PER_NODE").value_or(""));
  if (const auto here = tasks_of_node(tasks, number("SLURM_NODEID").value_or(0)))
    place.local_size = *here;
  if (!place.address.empty()) return;
  std::optional<std::string> nodes;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (!nodes) nodes = variable(name);
  place.address = first_host(nodes.value_or("localhost"));
  const std::string job = variable("SLURM_JOB_ID").value_or("0"),
                    step = variable("SLURM_STEP_ID").value_or("0");
  // Below the ports that Linux gives to outgoing connections.
  if (place.port == 0)
    place.port = 20000 + static_cast<int>(Hash64().add(job).add("." + step).value() % 12000);
  if (place.token.empty()) place.token = fmt::format("slurm {}.{}", job, step);
}

}  // namespace

std::optional<RankPlace> place_in_environment() {
  for (const Names& names : starters) {
    const std::optional<int> rank = number(names.rank);
    std::optional<int> size = number(names.size);
    if (std::string_view(names.starter) == "srun") {
      // A batch job of Slurm has these variables too, without being started by srun.
      if (!variable("SLURM_STEP_ID")) continue;
      if (const auto tasks = number("SLURM_STEP_NUM_TASKS")) size = tasks;  // not the job's
    }
    if (!rank || !size) continue;
    if (set_by_srun(names, *rank, *size)) continue;
    if (*size < 1 || *rank >= *size)
      throw ValueError(
          fmt::format("{}={} must be below {}={}", names.rank, *rank, names.size, *size));
    if (*size == 1) return {};
    RankPlace place;
    place.rank = *rank, place.size = *size, place.starter = names.starter;
    place.local_size = number(names.local_size).value_or(place.size);
    // Starters that do not tell put consecutive ranks on one host.
    place.local_rank =
        number(names.local_rank).value_or(place.rank % std::max(1, place.local_size));
    place.address = variable("MASTER_ADDR").value_or("");
    place.port = number("MASTER_PORT").value_or(0);
    place.token = variable("EBB_LAUNCH_TOKEN").value_or("");
    if (place.rank == 0) place.listener = number("EBB_LAUNCH_LISTENER");
    if (place.starter == "srun") find_in_slurm(place);
    if (!place.address.empty() && place.port == 0)
      throw ValueError("MASTER_ADDR names the host of rank 0, but MASTER_PORT is missing");
    if (place.address.empty() && place.starter == "RANK")
      throw ValueError(
          "RANK and WORLD_SIZE are set, but MASTER_ADDR, the host of rank 0, is missing");
    return place;
  }
  return {};
}

std::shared_ptr<Communicator> connect(const RankPlace& place, double patience_s) {
  const Clock::time_point deadline = Clock::now() + seconds(patience_s);
  if (place.address.empty()) return mpi_ranks(place, deadline);
  return socket_ranks(place.rank, meet(place, deadline));
}

}  // namespace ebb::dist
