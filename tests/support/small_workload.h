// Every workload at a size that tests can afford, with sizes that no block of a kernel divides.
#pragma once

#include "ebb/workloads/workload.h"

namespace ebb::test {

inline workloads::Options small_workload(const std::string& name) {
  workloads::Options options;
  options.name = name;
  options.batch = name == "mlp" ? 100 : 6;
  if (name == "resnet") options.depth = 32;
  if (name == "mlp" || name == "resnet") return options;
  options.layers = 2, options.width = 96, options.heads = 4;
  options.sequence = 50, options.vocabulary = 503;
  if (name == "lm" || name == "llama") options.hidden = 172;
  return options;
}

}  // namespace ebb::test
