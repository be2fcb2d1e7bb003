// layer_norm and rms_norm: normalise rows, the former after centring. One kernel serves both.
#pragma once

#include "ebb/op.h"

namespace ebb {

enum class Centring : bool { no, yes };  // rms_norm or layer_norm

// Inputs: x (..., C), then weight (C) and bias (C) as they exist.
// Outputs: y like x, mean (...) if centred, rstd (...): 1 / sqrt(mean square + eps).
struct RowNormAttributes {
  double eps = 0.0;
  bool weight = false, bias = false;
  bool operator==(const RowNormAttributes&) const = default;
  void visit(auto&& field) {
    field("eps", eps);
    field("weight", weight);
    field("bias", bias);
  }
};

// Inputs: x, the gradient of y, mean if centred, rstd, then weight if there is one, then,
// optionally, another gradient of x (from a residual), which is added to the result. Outputs: the
// gradient of x, then, if requested, the gradients of weight and bias, and the sum over rows of the
// first output, which is the gradient of a bias that was added to x.
struct RowNormGradAttributes {
  double eps = 0.0;
  bool weight = false;
  bool weight_grad = false, bias_grad = false;
  bool added = false;
  bool sum = false;
  bool operator==(const RowNormGradAttributes&) const = default;
  void visit(auto&& field) {
    field("eps", eps);
    field("weight", weight);
    field("weight_grad", weight_grad);
    field("bias_grad", bias_grad);
    field("added", added);
    field("sum", sum);
  }
};

// Indices of the optional inputs of the gradient.
struct RowNormGradInputs {
  std::size_t rstd, weight, added;
  RowNormGradInputs(Centring centring, const RowNormGradAttributes& a)
      : rstd(centring == Centring::yes ? 3 : 2), weight(rstd + 1), added(weight + a.weight) {}
};

const Op& layer_norm_grad_op();
const Op& rms_norm_grad_op();

template <Centring centring>
Kernel bind_row_norm_cpu(const KernelRequest& request, const RowNormAttributes& attributes);
template <Centring centring>
Kernel bind_row_norm_cuda(const KernelRequest& request, const RowNormAttributes& attributes);
template <Centring centring>
Kernel bind_row_norm_grad_cpu(const KernelRequest& request,
                              const RowNormGradAttributes& attributes);
template <Centring centring>
Kernel bind_row_norm_grad_cuda(const KernelRequest& request,
                               const RowNormGradAttributes& attributes);

}  // namespace ebb
