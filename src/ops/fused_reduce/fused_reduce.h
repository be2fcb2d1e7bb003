// A reduction of what elementwise functions compute, without the tensor between them: the kernel
// folds elements as it evaluates them, in the order in which the reduction would read them.
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
  // What the reduction would read: the program's result lies in one piece.
  Arg unfused() const { return {evaluated(), contiguous_strides(shape)}; }
};

const Op& fused_reduce_op();

// Whether a reduction of elements of this shape gains by evaluating them itself. On the CPU, where
// programs run on tiles, not if it would ask for short pieces from here and there; on CUDA not if
// rows, or rows of columns, are so short that most threads would have none.
bool gains_by_evaluating(const Shape& shape, const Axes& axes, Device device);

Kernel bind_fused_reduce(const KernelRequest& request, const FusedReduceAttributes& attributes);
Kernel bind_fused_reduce_cuda(const KernelRequest& request,
                              const FusedReduceAttributes& attributes);

}  // namespace ebb
