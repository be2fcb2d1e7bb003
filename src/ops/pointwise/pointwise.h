// The table of elementwise functions, and the op that runs a fused chain or tree of them.
#pragma once

#include <vector>

#include "ebb/op.h"
#include "ops/pointwise/row.h"

namespace ebb {

// Attributes of rows that generate values: `shape` and `dtype` of the result, and the row's
// numbers.
struct GeneratorAttributes {
  Shape shape;
  DType dtype = f32;
  Immediates numbers;
  bool operator==(const GeneratorAttributes&) const = default;
  void visit(auto&& field) {
    field("shape", shape);
    field("dtype", dtype);
    numbers.visit(field);
  }
};

struct CastAttributes {
  DType dtype = f32;
  bool operator==(const CastAttributes&) const = default;
  void visit(auto&& field) { field("dtype", dtype); }
};

// One function of a fused program. Values are numbered: inputs first, then instructions in order.
struct PointwiseInstruction {
  const PointwiseRow* row = nullptr;
  std::vector<int> operands;
  DType dtype = f32;  // of the result
  Immediates numbers;
  bool operator==(const PointwiseInstruction&) const = default;
  void visit(AttributeFields& field);
};

// Attributes of the `fused` op: straight-line code whose last instruction is the result.
struct FusedAttributes {
  std::vector<DType> input_dtypes;
  std::vector<PointwiseInstruction> code;
  Shape shape;  // of the result, to which all inputs broadcast

  bool operator==(const FusedAttributes&) const = default;
  void visit(AttributeFields& field);
  std::string text() const;  // "mul exp add"

 private:
  void check() const;
};

// The one-instruction program of a node's op, which must have a row.
FusedAttributes program_of(const Node& node);

const Op& fused_op();
const Op& full_op();
const Op& cast_op();
const Op& identity_op();  // copies a view into a contiguous buffer

// The factors of dropout: 0 with probability p, else 1 / (1 - p). Element i has word i % 4 of
// Philox counter i / 4, so kernels can compute any part of it themselves.
Tensor dropout_mask(const Shape& shape, double p, DType dtype, Device device, RandomKey key);

const Op& pointwise_op(std::string_view name);
std::span<const Op* const> pointwise_ops();

// Kernels of every op of the table: of one function and of many.
Kernel bind_pointwise(const KernelRequest& request, const FusedAttributes& program);
Kernel bind_pointwise_cuda(const KernelRequest& request, const FusedAttributes& program);

}  // namespace ebb
