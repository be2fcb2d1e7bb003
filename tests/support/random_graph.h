// Random graphs of most ops, the same for the same seed on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "ebb/ebb.h"

namespace ebb::test {

// A graph with what it needs to run: values for its inputs and the initial values of its variables.
struct RandomGraph {
  Graph graph;
  std::vector<Tensor> input_values;
  std::vector<Variable> variables;
  std::vector<Tensor> initial;

  void reset_variables();
};

// About `size` calls of ops on tensors of `dtype`, a scalar computed from them, its gradients, and
// updates of variables by gradients, by each other's values and by views. Extents other than 1 are
// multiples of `scale`, where ops allow it.
RandomGraph random_graph(std::uint64_t seed, int size, DType dtype, std::int64_t scale = 1);

// How many random graphs a test tries: `usual`, or the N of `ebb_tests --random-graphs=N`.
std::uint64_t graphs_to_try(std::uint64_t usual);
void set_graphs_to_try(std::uint64_t count);

using Image = std::vector<std::vector<std::byte>>;  // the bytes of some tensors
std::vector<std::byte> bytes_of(const Tensor& t);

// Outputs and variables after each of two steps from the initial state.
Image two_steps(RandomGraph& random, Program& program);

}  // namespace ebb::test
