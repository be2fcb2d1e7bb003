// Builds a graph node by node. Values are typed; nodes and their results are named by the module
// whose work they do ("transformer.h.0.attn.c_attn/MatMul"), weights by their names in safetensors.
//
// Half types: weights keep their type and products are computed in it. What ebb computes in float32
// (norms, softmax, activations, rotations) is cast to float32 and back.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/graph.h"
#include "onnx/weights.h"

namespace ebb::onnx {

struct Value {
  std::string name;
  DType dtype = f32;
};

class Builder {
 public:
  // `compute`: the dtype of activations, inputs and outputs. `names`: how files name weights.
  // `bits`: weights of linear layers are quantised so.
  Builder(const Weights& weights, DType compute, io::Names names = {},
          std::optional<LowBits> bits = {})
      : weights_(weights), compute_(compute), names_in_files_(std::move(names)), bits_(bits) {}

  DType compute() const { return compute_; }

  // While it lives, nodes are named by this module.
  class Module {
   public:
    Module(Builder& builder, std::string_view name);
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

   private:
    Builder& builder_;
    std::string outer_;
  };

  Value input(const std::string& name, DType dtype, std::vector<Axis> axes);
  // Gives the value this name.
  void output(const Value& value, const std::string& name, std::vector<Axis> axes);

  // A parameter of the current module ("weight", "norm.bias"), as `compute` or as another dtype.
  Value weight(std::string_view name) { return weight(name, compute_); }
  Value weight(std::string_view name, DType dtype);
  std::int64_t size(std::string_view name, int axis) const;  // of a parameter
  bool has(std::string_view name) const { return weights_.has(path(name)); }
  // Whether a linear layer's weight is stored in few bits.
  bool is_quantised(std::string_view name) const;
  // That weight as (out, in), from codes and scales: DequantizeLinear over blocks of the inputs.
  // `transposed`: the model's own matrix is (in, out).
  Value quantised_weight(std::string_view name, bool transposed);
  // A weight of another module, by its full name.
  Value shared_weight(const std::string& name);
  // A table of numbers that follow from the config; `write` returns them when the file is written.
  Value table(const std::string& name, const TensorType& type,
              std::function<void(const Sink&)> write);

  Value scalar(double value, DType dtype);
  Value integer(std::int64_t value);                      // int64, without axes
  Value integers(const std::vector<std::int64_t>& list);  // int64, one axis

  // The result has the dtype of the first input, unless it is given.
  using Attributes = std::vector<Attribute>;
  Value node(const char* op, const std::vector<Value>& inputs, Attributes attributes = {},
             std::optional<DType> dtype = {});
  std::vector<Value> split(const Value& x, int parts, std::int64_t axis);
  // Parts of these sizes.
  std::vector<Value> split(const Value& x, const std::vector<std::int64_t>& sizes,
                           std::int64_t axis);
  Value cast(const Value& x, DType dtype);  // x itself where it has that dtype
  Value in_float(const Value& x) { return cast(x, f32); }

  Value add(const Value& a, const Value& b) { return node("Add", {a, b}); }
  Value subtract(const Value& a, const Value& b) { return node("Sub", {a, b}); }
  Value multiply(const Value& a, const Value& b) { return node("Mul", {a, b}); }
  Value multiply(const Value& a, double b) { return node("Mul", {a, scalar(b, a.dtype)}); }
  Value add(const Value& a, double b) { return node("Add", {a, scalar(b, a.dtype)}); }
  // An axis of 0 keeps the input's size at the same place; -1 is the size that remains.
  Value reshape(const Value& x, const std::vector<std::int64_t>& shape) {
    return node("Reshape", {x, integers(shape)});
  }
  Value transpose(const Value& x, std::vector<std::int64_t> order) {
    return node("Transpose", {x}, {{"perm", std::move(order)}});
  }
  Value unsqueeze(const Value& x, const std::vector<std::int64_t>& axes) {
    return node("Unsqueeze", {x, integers(axes)});
  }
  // One axis of a value's shape, as a vector of one number.
  Value axis_size(const Value& x, std::int64_t axis);

  Graph finish(std::string name);

 private:
  std::string path(std::string_view name) const;
  std::string unique(const std::string& name);
  Value stored(const std::string& name);  // an initializer, in the dtype it has
  Value as(const Value& weight, DType dtype);
  std::vector<Value> parts_of_last(std::size_t parts, DType dtype);  // outputs of a Split
  Value constant(const std::string& name, const TensorType& type, std::string bytes);

  const Weights& weights_;
  DType compute_;
  io::Names names_in_files_;
  std::optional<LowBits> bits_;
  std::string module_;
  Graph graph_;
  std::map<std::string, Value> known_;       // initializers, and casts of them, by name
  std::map<std::string, int> names_;         // uses of each name of a node
  std::map<std::string, std::size_t> made_;  // the node that makes each value
};

}  // namespace ebb::onnx
