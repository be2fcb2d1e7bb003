// Two ops on masks of one bit a weight (ebb/masks.h): applying a mask, and choosing the live
// weights.
#pragma once

#include <bit>
#include <cstdint>

#include "ebb/masks.h"
#include "ebb/op.h"
#include "ops/dispatch.h"

namespace ebb {

struct MaskedAttributes {
  std::int64_t weights = 0;  // that the mask is for
  bool operator==(const MaskedAttributes&) const = default;
  void visit(auto&& field) { field("weights", weights); }
};

struct ChooseMaskAttributes {
  enum class Kind : std::uint8_t { magnitude, value, regrow };
  Kind kind = Kind::magnitude;
  std::int64_t of = 0, axis = 0;  // of runs; `of` is 0 if all weights of the tensor compete
  bool operator==(const ChooseMaskAttributes&) const = default;
  void visit(auto&& field) {
    static constexpr std::string_view names[] = {"magnitude", "value", "regrow"};
    field.choice("kind", kind, names);
    field("of", of);
    field("axis", axis);
  }
};

const Op& masked_op();
const Op& choose_mask_op();
Kernel bind_masked_cpu(const KernelRequest& request, const MaskedAttributes& attributes);
Kernel bind_masked_cuda(const KernelRequest& request, const MaskedAttributes& attributes);
Kernel bind_choose_mask_cpu(const KernelRequest& request, const ChooseMaskAttributes& attributes);
Kernel bind_choose_mask_cuda(const KernelRequest& request, const ChooseMaskAttributes& attributes);

// Calls make(TypeTag<T>{}, TypeTag<G>{}) with the types of weights and gradients; without gradients
// both are the weights'.
template <class Make>
Kernel dispatch_choice(const KernelRequest& request, const ChooseMaskAttributes& a,
                       const Make& make) {
  const DType weights = request.in(0).dtype();
  if (a.kind == ChooseMaskAttributes::Kind::regrow && request.in(3).dtype() != weights)
    return request.in(3).dtype() == bf16 ? make(TypeTag<float>{}, TypeTag<BFloat16>{})
                                         : make(TypeTag<float>{}, TypeTag<MachineHalf>{});
  return dispatch_floating(request, weights, [&](auto tag) { return make(tag, tag); });
}

// Keys order weights as integers: among competing weights, the smallest key is chosen first.
namespace mask_key {

inline constexpr std::uint32_t never = 0xffffffffu;  // above the key of every candidate

// |x| as float32; NaN is above infinity.
constexpr std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
constexpr bool finite(float x) { return magnitude(x) < 0x7f800000u; }

// The key of a weight that may die; weights that are already dead have 0, below all others.
constexpr std::uint32_t shrinking(float x, bool by_magnitude, bool live) {
  if (!live) return 0;
  if (by_magnitude) return magnitude(x) + 1;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x == 0.0f ? 0.0f : x);
  const std::uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ordered == 0 ? 1 : ordered;
}
// The keys of a live weight that may be dropped, and of a dead weight that may grow.
constexpr std::uint32_t dropping(float weight, bool live) {
  return live ? magnitude(weight) : never;
}
constexpr std::uint32_t growing(float gradient, bool live) {
  return live ? never : 0xfffffffeu - magnitude(gradient);
}

}  // namespace mask_key

// Runs along an axis: element i has its place among the `of` of its run, which lie `stride` apart.
struct RunGeometry {
  std::int64_t of, stride;

  // The first element of i's run.
  constexpr std::int64_t first(std::int64_t i) const { return i - i / stride % of * stride; }
};
// The number of weights of a run that die for a share such as 1 - 2 / 3, which is not exact.
constexpr std::int64_t dead_in_run(double share, std::int64_t of) {
  return static_cast<std::int64_t>(share * static_cast<double>(of) + 1e-9);
}
RunGeometry runs_of(const Shape& shape, const ChooseMaskAttributes& attributes);

}  // namespace ebb
