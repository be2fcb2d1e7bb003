// How many graphs of training steps this process has traced: each is planned, and planning takes
// time, so that callers report and test it.
#pragma once

#include <atomic>
#include <cstdint>

namespace ebb {

std::atomic<std::int64_t>& traced_steps();

}  // namespace ebb
