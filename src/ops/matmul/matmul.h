#pragma once

#include "ebb/op.h"

namespace ebb {

struct MatmulAttributes {
  bool transpose_a = false, transpose_b = false;
  bool operator==(const MatmulAttributes&) const = default;
  void visit(auto&& field) {
    field("transpose_a", transpose_a);
    field("transpose_b", transpose_b);
  }
};

const Op& matmul_op();
Kernel bind_matmul_cpu(const KernelRequest& request, const MatmulAttributes& attributes);
Kernel bind_matmul_cuda(const KernelRequest& request, const MatmulAttributes& attributes);

}  // namespace ebb
