// Inputs of a program's next run, put where a device can fetch them by itself while the run before
// is still going on.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/cuda.h"
#include "ebb/node.h"

namespace ebb {

class Uploads {
 public:
  Uploads(Device device, std::size_t inputs) : device_(device), inputs_(inputs) {}

  // Takes a copy of a tensor of the host for input i.
  void keep(std::size_t i, const Tensor& value);

  // Where the copy of that tensor is, if it was the last one kept for input i, or null.
  const std::byte* find(std::size_t i, const Tensor& value) const;

 private:
  struct Input {
    std::shared_ptr<Node> of;  // the tensor that is kept
    // In turn: the run that is going on may still be fetching the other.
    std::unique_ptr<cuda::Pinned> places[2];
    int place = 0;
  };
  Device device_;
  std::vector<Input> inputs_;
};

}  // namespace ebb
