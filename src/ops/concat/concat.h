#pragma once

#include "ebb/op.h"

namespace ebb {

const Op& concat_op();

}  // namespace ebb
