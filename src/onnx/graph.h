// An ONNX graph in memory: everything in the file except the bytes of the weights, which are
// written together with the file (model_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ebb/tensor.h"

namespace ebb::onnx {

// Takes the bytes of a tensor, one piece after the other.
using Sink = std::function<void(std::span<const std::byte>)>;

// An axis of an input or output: its size, or a name for a size that every run chooses.
using Axis = std::variant<std::int64_t, std::string>;

// An input or output of the graph.
struct Port {
  std::string name;
  DType dtype = f32;
  std::vector<Axis> axes;
};

struct Attribute {
  std::string name;
  std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
};

struct Node {
  std::string name, op;
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> attributes;
  DType dtype = f32;  // of the first input
};

// Small constants (scalars, shapes) stay in the model's file even if weights do not, because
// readers need them to infer shapes.
enum class Kind : std::uint8_t { weight, table, constant };

// Integer types of quantised weights: int8, and int4 with two to a byte, the first in the lower
// half.
enum class SmallType : std::uint8_t { int8, int4 };

struct Initializer {
  std::string name;
  TensorType type;
  std::function<void(const Sink&)> write;  // gives exactly bytes()
  Kind kind = Kind::weight;
  // The element's type if ebb has no dtype for it; `type` then gives only the shape.
  std::optional<SmallType> small = {};

  Bytes bytes() const {
    if (small != SmallType::int4) return type.bytes();
    return Bytes{(type.shape.elements() + 1) / 2};  // two elements to a byte
  }
};

struct Graph {
  std::string name;
  std::vector<Node> nodes;  // in an order in which they can run
  std::vector<Initializer> initializers;
  std::vector<Port> inputs, outputs;
};

}  // namespace ebb::onnx
