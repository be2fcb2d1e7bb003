// Predicts the memory of a walk through a model's blocks, before it starts.
#pragma once

#include <cstddef>

#include "prune/block_walk.h"

namespace ebb::prune {

struct WalkChoice {
  bool values_in_file = false;       // the values between blocks
  bool one_input_at_a_time = false;  // of a block's matrices
};

// The order in which choices are tried: the fastest first.
inline constexpr WalkChoice walk_choices[] = {
    {}, {.one_input_at_a_time = true}, {.values_in_file = true}, {true, true}};

class WalkBytes {
 public:
  // `batches` is the number of batches; 0 if nothing is computed on data.
  WalkBytes(const Structure& structure, const BlockGraphs& graphs, const MatrixChange& change,
            const WalkOptions& options, std::size_t batches);

  // Peak memory of the walk, including the variables' own bytes and excluding WalkOptions::fixed.
  Bytes peak(const WalkChoice& choice) const;

 private:
  Bytes values(const WalkChoice& choice) const;
  Bytes of_block(std::size_t block, const WalkChoice& choice) const;
  // A stage that runs one program, with its variables.
  Bytes of_stage(const Graph& graph) const;
  Bytes of_variables(const std::vector<std::size_t>& variables) const;
  // A program without the model's variables: arena, outputs, constants and sums.
  Bytes of_program(const Graph& graph) const;

  const Structure& s_;
  const BlockGraphs& graphs_;
  const MatrixChange& change_;
  const WalkOptions& options_;
  const std::size_t batches_;
};

// The bytes of a matrix in float64 while it is changed.
Bytes matrix_bytes(const MatrixChange& change, const Product& product, const Shape& shape);

}  // namespace ebb::prune
