// Copies of the inputs of a program's next run in pinned host memory, from which a GPU can fetch
// them asynchronously. They are made while the current run is in progress.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/cuda.h"
#include "ebb/node.h"

namespace ebb {

class Uploads {
 public:
  Uploads(Device device, std::size_t inputs) : device_(device), inputs_(inputs) {}

  // Copies a tensor on the host for input i.
  void keep(std::size_t i, const Tensor& value);

  // The copy of `value` if it was the last tensor kept for input i, otherwise null.
  const std::byte* find(std::size_t i, const Tensor& value) const;

 private:
  struct Input {
    std::shared_ptr<Node> of;  // the node of the tensor kept last
    // Used in turn, because the GPU may still be copying from the other one.
    std::unique_ptr<cuda::Pinned> places[2];
    int place = 0;
  };
  Device device_;
  std::vector<Input> inputs_;
};

}  // namespace ebb
