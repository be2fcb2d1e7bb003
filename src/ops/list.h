// Every op of the library, one line each: the one list to add a new op to. The elementwise table
// (pointwise/table.cpp) and its generators add their own rows.
#pragma once

#define EBB_OPS(X)      \
  X(constant)           \
  X(input)              \
  X(variable)           \
  X(full)               \
  X(arange)             \
  X(random_uniform)     \
  X(random_normal)      \
  X(dropout_mask)       \
  X(cast)               \
  X(identity)           \
  X(fused)              \
  X(reshape)            \
  X(permute)            \
  X(expand)             \
  X(slice)              \
  X(split)              \
  X(stop_gradient)      \
  X(concat)             \
  X(pad)                \
  X(gather)             \
  X(scatter_add)        \
  X(sum)                \
  X(sum_squares)        \
  X(max)                \
  X(min)                \
  X(matmul)             \
  X(conv2d)             \
  X(conv2d_input_grad)  \
  X(conv2d_weight_grad) \
  X(max_pool2d)         \
  X(max_pool2d_grad)    \
  X(max_pool2d_gather)  \
  X(avg_pool2d)         \
  X(avg_pool2d_grad)
