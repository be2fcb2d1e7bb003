// Reverse-mode differentiation from graph to graph: gradients are ordinary tensors and can be
// differentiated again, to any order.
#pragma once

#include <span>
#include <vector>

#include "ebb/tensor.h"

namespace ebb {

// The gradients of `loss`, which has one element, with respect to each of `wrt`. Zeros if the loss
// does not depend on it.
std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt);
std::vector<Tensor> grad(const Tensor& loss, std::initializer_list<Tensor> wrt);

// The same, but an empty tensor (PyTorch's None) if the loss does not depend on it.
std::vector<Tensor> grad_where_reached(const Tensor& loss, std::span<const Tensor> wrt);

// Gradient accumulation: adds the gradients to `sums`, one for each of `wrt`, which must be
// variables or inputs. Each gradient is added as soon as it exists, so that at most one exists in
// addition to the sums. A sum may be empty, and stays empty if the loss does not depend on its
// variable.
std::vector<Tensor> grad_onto(std::span<const Tensor> sums, const Tensor& loss,
                              std::span<const Tensor> wrt);

// The vector-Jacobian product: Σ_i cotangents[i] · ∂outputs[i] / ∂wrt.
std::vector<Tensor> vjp(std::span<const Tensor> outputs, std::span<const Tensor> cotangents,
                        std::span<const Tensor> wrt);

// Hessian of `loss` times `vectors`, in the directions `wrt`.
std::vector<Tensor> hessian_vector_product(const Tensor& loss, std::span<const Tensor> wrt,
                                           std::span<const Tensor> vectors);

}  // namespace ebb
