// The processors (hardware threads) of this machine.
#pragma once

#include <vector>

namespace ebb {

// One processor of every physical core that the calling thread may run on, in ascending order;
// empty if the system does not report them.
std::vector<int> processors_of_cores();

}  // namespace ebb
