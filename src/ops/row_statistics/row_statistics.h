#pragma once

#include "ebb/op.h"

namespace ebb {

struct VarAttributes {
  std::int64_t correction = 1;  // the sum of squares is divided by the count less this
  bool operator==(const VarAttributes&) const = default;
  void visit(auto&& field) { field("correction", correction); }
};

const Op& logsumexp_op();
const Op& var_op();
const Op& argmax_op();

Kernel bind_logsumexp_cpu(const KernelRequest& request, const NoAttributes&);
Kernel bind_logsumexp_cuda(const KernelRequest& request, const NoAttributes&);
Kernel bind_var_cpu(const KernelRequest& request, const VarAttributes& attributes);
Kernel bind_var_cuda(const KernelRequest& request, const VarAttributes& attributes);
Kernel bind_argmax_cpu(const KernelRequest& request, const NoAttributes&);
Kernel bind_argmax_cuda(const KernelRequest& request, const NoAttributes&);

}  // namespace ebb
