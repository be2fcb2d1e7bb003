// What can be removed from a model: groups of indices of its variables that must go together.
//
// The groups are found over the graph of the model's loss. Every index of every axis of a variable
// starts as its own class. Ops merge classes: a product merges the columns of one factor with the
// rows of the other, a residual addition merges the channels of its terms, a reshape into heads
// merges the indices of one head, grouped attention merges a key head with its query heads. Each
// class that remains can be removed by itself, and the rest of the model stays valid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/train/train_step.h"

namespace ebb::prune {

enum class Kind : std::uint8_t {
  heads,     // of attention; with grouped heads, a key head and the query heads that read it
  neurons,   // of a layer between two products
  channels,  // of a convolution
};
std::string_view name(Kind kind);

struct Range {
  std::int64_t begin = 0, end = 0;  // [begin, end)
  bool operator==(const Range&) const = default;
};

// The indices of one axis of one variable that belong to a group.
struct Part {
  std::size_t variable = 0;  // in Structure::variables
  int axis = 0;
  std::vector<Range> ranges;
};

struct Group {
  std::vector<Part> parts;
};

// A value that a product or a convolution sums over: group_of[i] is the group of index i of `axis`,
// or -1.
struct Reading {
  Tensor value;
  int axis = 0;
  std::vector<int> group_of;
};

// Groups that take indices from the same axes: the heads of one layer, the neurons of one layer.
struct Dimension {
  Kind kind = Kind::neurons;
  std::string path = {};  // the common part of its variables' paths
  std::vector<Group> groups = {};
  std::vector<Reading> readings = {};
};

// A module of a list that adds to its input: without it, `exit` is `entry`.
struct Block {
  std::string path = {};
  std::vector<std::size_t> variables = {};
  Tensor entry = {}, exit = {};
  bool removable = false;  // whether `exit` is `entry` plus other terms
};

// A matrix product inside a block whose second factor is a variable.
struct Product {
  std::size_t variable = 0, block = 0;
  int input_axis = 0;  // of the variable: the axis that the product sums over
  Tensor input = {};   // (rows, inputs)
};

struct Structure {
  std::vector<nn::NamedVariable> variables;  // parameters, then buffers
  std::vector<Tensor> inputs;                // placeholders of the batch
  Tensor loss;
  std::vector<Dimension> dimensions;  // in order of their first variable
  std::vector<Block> blocks;          // in the order in which they run
  std::vector<Product> products;      // in the order in which they run
};

// Traces the loss in evaluation mode for batches of these types. Computes nothing.
Structure find_structure(nn::ModuleBase& model, const LossFunction& loss,
                         const std::vector<TensorType>& batch);

}  // namespace ebb::prune
