// The processors (hardware threads) of this machine.
#pragma once

#include <vector>

namespace ebb {

// One processor of every physical core that the calling thread may run on, in ascending order;
// empty where the system does not tell.
std::vector<int> processors_of_cores();

}  // namespace ebb
