// A reduction fused with the elementwise program before it: the kernel reduces elements as it
// evaluates them, in the order in which the separate reduction would read them.
#pragma once

#include "ops/pointwise/pointwise.h"
#include "ops/reduce/geometry.h"
#include "ops/reduce/reduce.h"

namespace ebb {

struct FusedReduceAttributes {
  FusedAttributes program;
  Shape shape;  // of the program's result as it is reduced: with as many elements as it has
  ReduceKind kind = ReduceKind::sum;
  ReduceAttributes reduce;

  bool operator==(const FusedReduceAttributes&) const = default;
  void visit(auto&& field) {
    program.visit(field);
    field("evaluated", shape);
    field.choice("reduction", kind, reduce_kind_names);
    reduce.visit(field);
  }

  TensorType evaluated() const { return {shape, program.code.back().dtype}; }
  // The operand that an unfused reduction would read: the program's result as a contiguous tensor.
  Arg unfused() const { return {evaluated(), contiguous_strides(shape)}; }
};

const Op& fused_reduce_op();

// Whether fusing a reduction over elements of this shape is faster. It is not on the CPU if the
// reduction would evaluate short, scattered pieces, because programs run on tiles, and not on CUDA
// if rows are so short that most threads would be idle.
bool gains_by_evaluating(const Shape& shape, const Axes& axes, Device device);

Kernel bind_fused_reduce(const KernelRequest& request, const FusedReduceAttributes& attributes);
Kernel bind_fused_reduce_cuda(const KernelRequest& request,
                              const FusedReduceAttributes& attributes);

}  // namespace ebb
