// Finds the ranks of a run and connects each with each, twice: for data, and for signs of life.
#pragma once

#include <string>
#include <vector>

#include "dist/socket.h"
#include "ebb/dist/ranks.h"

namespace ebb::dist {

struct Mesh {
  std::vector<Socket> data, control;  // by rank; those of this rank are empty
};

// Rank 0 listens at the address of the place; the others connect to it and learn where each of them
// listens. A RankError names the ranks that did not come.
Mesh meet(const RankPlace& place, Clock::time_point deadline);

// The second half alone: connects ranks that know each other's addresses.
struct Contact {
  std::string address;
  int port = 0;
};
Mesh connect_all(int rank, const std::vector<Contact>& contacts, const Socket& listener,
                 const std::string& token, Clock::time_point deadline);

}  // namespace ebb::dist
