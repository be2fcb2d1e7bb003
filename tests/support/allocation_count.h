// Calls of operator new and delete in this process so far, by anyone.
#pragma once

#include <cstdint>

namespace ebb::test {

std::int64_t allocation_count();
std::int64_t live_allocations();  // allocated and not yet freed

}  // namespace ebb::test
