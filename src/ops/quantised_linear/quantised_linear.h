// Three ops on weights in packed form (ebb/quantised.h): packing, unpacking, and the product with a
// packed matrix in both orientations.
#pragma once

#include "ebb/op.h"
#include "ebb/quantised.h"

namespace ebb {

struct DequantiseAttributes {
  Encoding encoding;
  DType dtype = f32;
  bool operator==(const DequantiseAttributes&) const = default;
  void visit(auto&& field) {
    encoding.visit(field);
    field("dtype", dtype);
  }
};

// x (M, columns) · Wᵀ → (M, rows), or, `back`, x (M, rows) · W → (M, columns).
struct QuantisedLinearAttributes {
  Encoding encoding;
  bool back = false;
  bool operator==(const QuantisedLinearAttributes&) const = default;
  void visit(auto&& field) {
    encoding.visit(field);
    field("back", back);
  }

  std::int64_t inner() const { return back ? encoding.rows : encoding.columns; }
  std::int64_t outer() const { return back ? encoding.columns : encoding.rows; }
};

const Op& quantise_op();
const Op& dequantise_op();
const Op& quantised_linear_op();

Kernel bind_quantise_cpu(const KernelRequest& request, const Encoding& encoding);
Kernel bind_quantise_cuda(const KernelRequest& request, const Encoding& encoding);
Kernel bind_dequantise_cpu(const KernelRequest& request, const DequantiseAttributes& attributes);
Kernel bind_dequantise_cuda(const KernelRequest& request, const DequantiseAttributes& attributes);
Kernel bind_quantised_linear_cpu(const KernelRequest& request,
                                 const QuantisedLinearAttributes& attributes);
Kernel bind_quantised_linear_cuda(const KernelRequest& request,
                                  const QuantisedLinearAttributes& attributes);

}  // namespace ebb
