// Times products with a weight of 4096 × 4096 in the pattern 2:4, and the dense product, for the
// table of docs/techniques/pruning.md. One JSON object for each dtype and number of rows.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ebb/ops.h"
#include "ebb/pairs.h"
#include "ebb/program.h"
#include "ebb/variable.h"

namespace ebb::bench {
namespace {

// The shortest of seven runs, in milliseconds.
double shortest(const Tensor& y, const Tensor& in, const Tensor& x) {
  Graph graph;
  graph.inputs = {in}, graph.outputs = {y};
  Program program(graph);
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    program.run({x});
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

void measure(DType dtype) {
  constexpr std::int64_t size = 4096;
  const Variable weight(eval(random_normal({size, size}, 0.0, 0.02, dtype), 1));
  const Tensor chosen = eval(choose_pairs(weight));
  const Variable values(eval(take_pairs(weight, chosen))), positions(chosen);
  for (const std::int64_t rows : {1, 4, 8, 64, 256}) {
    const Tensor x = eval(random_normal({rows, size}, 0.0, 1.0, dtype), 2),
                 in = input({{rows, size}, dtype}, "x");
    std::cout << nlohmann::json{{"dtype", name(dtype)},
                                {"rows", rows},
                                {"dense_ms", shortest(linear(in, weight), in, x)},
                                {"pairs_ms", shortest(pair_linear(in, values, positions), in, x)}}
              << std::endl;
  }
}

}  // namespace
}  // namespace ebb::bench

int main() {
  for (const ebb::DType dtype : {ebb::f32, ebb::bf16}) ebb::bench::measure(dtype);
}
