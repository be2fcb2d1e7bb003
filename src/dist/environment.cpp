// Which rank this process is, by the variables of those who start processes.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

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

// The first host of a list such as "node[3-5,9],login".
std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || (comma != std::string::npos && comma < bracket))
    return list.substr(0, comma);
  return list.substr(0, bracket) +
         list.substr(bracket + 1, list.find_first_of("-,]", bracket) - bracket - 1);
}

}  // namespace

std::optional<RankPlace> place_in_environment() {
  for (const Names& names : starters) {
    const std::optional<int> rank = number(names.rank), size = number(names.size);
    if (!rank || !size) continue;
    // A batch job of Slurm has these variables too, without being started by srun.
    if (std::string_view(names.starter) == "srun" && !variable("SLURM_STEP_ID")) continue;
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
    if (place.address.empty() && place.starter == "srun") {
      const std::string nodes = variable("SLURM_STEP_NODELIST")
                                    .value_or(variable("SLURM_NODELIST").value_or("localhost"));
      place.address = first_host(nodes);
      const std::string job = variable("SLURM_JOB_ID").value_or("0");
      place.port = place.port ? place.port : 20000 + std::atoi(job.c_str()) % 20000;
      if (place.token.empty()) place.token = "slurm " + job;
    }
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
