// A height and width as a field of attributes: a list of both.
#pragma once

#include "ebb/attributes.h"
#include "ebb/error.h"
#include "ebb/ops.h"

namespace ebb {

inline void visit_size(AttributeFields& fields, std::string_view field, Size2d& size) {
  IntList both{size.h, size.w};
  fields(field, both);
  if (both.size() != 2)
    throw ValueError(std::string(field) + " must be a height and a width, but is " +
                     to_string(both));
  size = {both[0], both[1]};
}

}  // namespace ebb
