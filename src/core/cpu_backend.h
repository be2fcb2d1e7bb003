#pragma once

#include "core/backend.h"

namespace ebb {

const Backend& cpu_backend();

}  // namespace ebb
