#pragma once

#include "ebb/op.h"

namespace ebb {

const Op& softmax_op();
const Op& softmax_grad_op();
const Op& log_softmax_op();

Kernel bind_softmax_cuda(const KernelRequest& request, const NoAttributes&);
Kernel bind_softmax_grad_cuda(const KernelRequest& request, const NoAttributes&);
Kernel bind_log_softmax_cuda(const KernelRequest& request, const NoAttributes&);
Kernel bind_softmax_cpu(const KernelRequest& request, const NoAttributes&);
Kernel bind_softmax_grad_cpu(const KernelRequest& request, const NoAttributes&);
Kernel bind_log_softmax_cpu(const KernelRequest& request, const NoAttributes&);

}  // namespace ebb
