// The transports between the ranks of a run, and how a process learns which rank it is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/communicator.h"

namespace ebb::dist {

// The place of this process in its run, as the launcher describes it in the environment.
struct RankPlace {
  int rank = 0, size = 1;
  int local_size = 1;  // ranks on this host
  int local_rank = 0;  // this rank's number on its host; it decides which GPU the rank uses
  std::string
      starter;  // of the variables that said it: "ebb launch", "MASTER_ADDR", "mpirun", "srun"
  // Where rank 0 listens; an empty address: the transport is MPI.
  std::string address;
  int port = 0;
  std::string token;                 // by which the ranks of one run recognise each other
  std::optional<int> listener = {};  // an open socket that rank 0 inherits
};

// Reads the variables of `ebb launch` and of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
// of Open MPI and MPICH (OMPI_COMM_WORLD_*, PMI_*) and of Slurm (SLURM_PROCID, SLURM_NTASKS). None
// if this process is alone. Variables that contradict each other are an error.
std::optional<RankPlace> place_in_environment();

// Connects the ranks of a run by sockets, or through MPI. Waits for all ranks for at most
// `patience_s` seconds.
std::shared_ptr<Communicator> connect(const RankPlace& place, double patience_s = 60.0);

// The cores that each rank can have for itself: those that it may run on, divided among the ranks
// of its host that may run on the same ones. Launchers may or may not bind ranks to cores.
struct RankCores {
  int count = 1;  // at least 1; the minimum over all ranks, because every rank has the same work
  // This rank's share, as one processor number per core; empty if there are fewer cores than ranks.
  std::vector<int> processors;
};
RankCores cores_of_a_rank(Communicator& ranks);

// Ranks that are threads of this process; each is used by one thread. If one is destroyed while
// another waits for it, that one gets a RankError.
std::vector<std::shared_ptr<Communicator>> thread_ranks(int count);

// A listening TCP socket on this host, at a port that is free.
struct Listener {
  int descriptor = -1;
  int port = 0;
};
Listener listen_here(const std::string& address, int port);

}  // namespace ebb::dist
