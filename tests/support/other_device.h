// The same graph on another device, for comparing what devices compute. Tests build their graphs on
// the CPU and move them.
#pragma once

#include <unordered_map>
#include <vector>

#include "ebb/device.h"
#include "ebb/graph.h"
#include "ebb/node.h"

namespace ebb::test {

// Whether this build has CUDA kernels, and whether there is a device to run them on. The first use
// that finds none says so on the terminal.
bool built_with_cuda();
bool cuda_present();

class OtherDevice {
 public:
  // What replaces constants: their values are copied, or, if the device is not here and only a plan
  // is wanted, an input takes their place.
  // plan is wanted, an input takes their place.
  enum class Constants { copied, inputs };
  OtherDevice(Device device, Constants constants) : device_(device), constants_(constants) {}

  Tensor operator()(const Tensor& tensor);
  std::vector<Tensor> operator()(const std::vector<Tensor>& tensors);
  Variable operator()(const Variable& variable);
  // The graph on the device. Inputs that take the place of constants come after its own.
  Graph operator()(const Graph& graph);

 private:
  std::vector<Tensor> moved(const Node& node);
  Tensor start_of(const Node& variable);

  Device device_;
  Constants constants_;
  std::unordered_map<const Node*, std::vector<Tensor>> done_;
  std::unordered_map<const Node*, Variable> variables_;
  std::vector<Tensor> stand_ins_;
};

}  // namespace ebb::test
