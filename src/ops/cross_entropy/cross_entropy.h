#pragma once

#include "ebb/op.h"

namespace ebb {

struct CrossEntropyAttributes {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  bool operator==(const CrossEntropyAttributes&) const = default;
  void visit(auto&& field) {
    field("ignore_index", ignore_index);
    field("label_smoothing", label_smoothing);
  }
};

const Op& cross_entropy_op();
const Op& cross_entropy_grad_op();

// With T = 1 - ε at the target plus ε/C everywhere and p = softmax(logits), all in primitive ops:
// log Σ exp over each row of `logits` (N, C).
Tensor row_logsumexp(const Tensor& logits);
// Σ -T log p of each row, 0 where ignored; and the logsumexp.
std::vector<Tensor> cross_entropy_rows(const Tensor& logits, const Tensor& targets,
                                       const CrossEntropyAttributes& a);
// (p - T) · g of each row, 0 where ignored: the gradient in the logits, given that of the rows.
Tensor cross_entropy_rows_grad(const Tensor& logits, const Tensor& targets, const Tensor& g,
                               const CrossEntropyAttributes& a);

// What calls with these attributes and targets must satisfy.
void check_cross_entropy(const Call& call, int targets, std::int64_t rows, std::int64_t classes,
                         double label_smoothing);

Kernel bind_cross_entropy_cpu(const KernelRequest& request, const CrossEntropyAttributes& a);
Kernel bind_cross_entropy_cuda(const KernelRequest& request, const CrossEntropyAttributes& a);
Kernel bind_cross_entropy_grad_cpu(const KernelRequest& request, const CrossEntropyAttributes& a);
Kernel bind_cross_entropy_grad_cuda(const KernelRequest& request, const CrossEntropyAttributes& a);

}  // namespace ebb
