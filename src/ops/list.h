// Every op of the library, one line each: the one list to add a new op to. The elementwise table
// (pointwise/table.cpp) and its generators add their own rows.
#pragma once

#define EBB_OPS(X)              \
  X(constant)                   \
  X(input)                      \
  X(variable)                   \
  X(full)                       \
  X(arange)                     \
  X(random_uniform)             \
  X(random_normal)              \
  X(dropout_mask)               \
  X(cast)                       \
  X(identity)                   \
  X(fused)                      \
  X(reshape)                    \
  X(permute)                    \
  X(expand)                     \
  X(slice)                      \
  X(split)                      \
  X(stop_gradient)              \
  X(concat)                     \
  X(pad)                        \
  X(gather)                     \
  X(scatter_add)                \
  X(sum)                        \
  X(sum_squares)                \
  X(max)                        \
  X(min)                        \
  X(matmul)                     \
  X(adam)                       \
  X(sgd)                        \
  X(softmax)                    \
  X(softmax_grad)               \
  X(log_softmax)                \
  X(logsumexp)                  \
  X(var)                        \
  X(argmax)                     \
  X(layer_norm)                 \
  X(layer_norm_grad)            \
  X(rms_norm)                   \
  X(rms_norm_grad)              \
  X(batch_norm)                 \
  X(batch_norm_grad)            \
  X(embedding)                  \
  X(embedding_grad)             \
  X(cross_entropy)              \
  X(cross_entropy_grad)         \
  X(linear_cross_entropy)       \
  X(linear_cross_entropy_grad)  \
  X(attention)                  \
  X(attention_grad)             \
  X(rotary)
