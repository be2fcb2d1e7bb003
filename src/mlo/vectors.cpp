#include "mlo/vectors.h"

#include <algorithm>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"

namespace ebb::mlo {
namespace {

// Sums are computed one by one: in one fused kernel, all operands would have to exist at once.
Tensor apart(const Tensor& sum) {
  sum.node()->set_category(Category::gradients);
  return sum;
}

}  // namespace

Tensor dot(const Vectors& a, const Vectors& b) {
  const bool wide =
      std::any_of(a.begin(), a.end(), [](const Tensor& t) { return t.dtype() == f64; });
  Vectors parts;
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Half types are multiplied in float32, so that squares neither underflow nor overflow.
    const DType dtype = wide ? f64 : f32;
    const Tensor product =
        a[i] == b[i] ? square(cast(a[i], dtype)) : cast(a[i], dtype) * cast(b[i], dtype);
    parts.push_back(reshape(sum(product), {1}));
  }
  if (parts.empty()) throw ValueError("a level without parameters has no vectors");
  return sum(concat(parts, 0));
}

Tensor norm(const Vectors& a) { return sqrt(dot(a, a)); }

Vectors add_scaled(const Vectors& a, const Tensor& scale, const Vectors& b) {
  Vectors result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    // For half types, only the sum is rounded.
    const DType own = a[i].dtype(),
                wide = size_of(own) < size_of(scale.dtype()) ? scale.dtype() : own;
    const Tensor step = cast(cast(b[i], scale.dtype()) * scale, wide);
    result.push_back(apart(cast(cast(a[i], wide) + step, own)));
  }
  return result;
}

Vectors add(const Vectors& a, const Vectors& b) {
  Vectors result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(apart(a[i] + b[i]));
  return result;
}

Vectors scaled(const Vectors& a, const Tensor& scale) {
  Vectors result;
  for (const Tensor& t : a) result.push_back(cast(cast(t, scale.dtype()) * scale, t.dtype()));
  return result;
}

Vectors scaled(const Vectors& a, double scale) {
  Vectors result;
  for (const Tensor& t : a) result.push_back(t * scale);
  return result;
}

}  // namespace ebb::mlo
