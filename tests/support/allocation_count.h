// How often operator new was called in this process so far, by anyone.
#pragma once

#include <cstdint>

namespace ebb::test {

std::int64_t allocation_count();

}  // namespace ebb::test
