// What the operating system says of this process's memory.
#pragma once

#include "ebb/bytes.h"

namespace ebb::cli {

Bytes process_resident();  // now
Bytes process_peak();      // the most so far

}  // namespace ebb::cli
