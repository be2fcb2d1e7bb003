#pragma once

#include <memory>

#include "dist/socket.h"
#include "ebb/dist/ranks.h"

namespace ebb::dist {

// Ranks that mpirun or another starter of MPI has started. An error says what is missing if this
// build or this machine has no MPI.
std::shared_ptr<Communicator> mpi_ranks(const RankPlace& place, Clock::time_point deadline);

}  // namespace ebb::dist
