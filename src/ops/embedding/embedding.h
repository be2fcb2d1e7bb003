#pragma once

#include "ebb/op.h"

namespace ebb {

struct EmbeddingGradAttributes {
  std::int64_t rows = 0;  // of the table
  bool operator==(const EmbeddingGradAttributes&) const = default;
  void visit(auto&& field) { field("rows", rows); }
};

Kernel bind_embedding_cpu(const KernelRequest& request, const NoAttributes&);
Kernel bind_embedding_cuda(const KernelRequest& request, const NoAttributes&);
Kernel bind_embedding_grad_cpu(const KernelRequest& request, const EmbeddingGradAttributes& a);
Kernel bind_embedding_grad_cuda(const KernelRequest& request, const EmbeddingGradAttributes& a);

}  // namespace ebb
