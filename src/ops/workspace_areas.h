// Areas of a kernel's workspace, one after the other.
#pragma once

#include "ebb/bytes.h"
#include "ebb/storage.h"

namespace ebb {

class WorkspaceAreas {
 public:
  // Each gives the place of the new area.
  Bytes add(Bytes size) {
    const Bytes at = total_;
    total_ += round_up(size, buffer_alignment);
    return at;
  }
  template <class T>
  Bytes add(std::int64_t elements) {
    return add(elements * Bytes{static_cast<std::int64_t>(sizeof(T))});
  }
  Bytes total() const { return total_; }

 private:
  Bytes total_;
};

}  // namespace ebb
