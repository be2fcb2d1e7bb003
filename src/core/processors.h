// The processors (hardware threads) of this machine.
#pragma once

#include <span>
#include <vector>

namespace ebb {

// One processor of every physical core that the calling thread may run on, in ascending order;
// empty if the system does not report them.
std::vector<int> processors_of_cores();

// Lets the calling thread, and threads that it starts from now on, run on these processors alone.
// Does nothing where the system does not allow it.
void keep_to(std::span<const int> processors);

}  // namespace ebb
