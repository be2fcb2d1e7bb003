// The update of Adam and AdamW with moments in 8 or 4 bits, as one op: it decodes, updates and
// encodes one block of state at a time, so that moments are never stored in floating point.
#pragma once

#include "ops/adam/adam.h"

namespace ebb {

struct QuantisedAdamAttributes {
  AdamAttributes adam;
  int bits = 8;  // or 4
  bool operator==(const QuantisedAdamAttributes&) const = default;
  void visit(auto&& field) {
    adam.visit(field);
    field("bits", bits);
  }
};

// A moment: codes in the order of the elements, two a byte (the first in the lower half) when they
// have 4 bits, and the largest magnitude of every block of 256 (8 bits) or 128 (4 bits) elements.
// Blocks whose magnitudes are all subnormal count as zero.
struct QuantisedMoment {
  Tensor codes;   // uint8
  Tensor absmax;  // float32
};

struct QuantisedTypes {
  TensorType codes, absmax;
};
QuantisedTypes quantised_types(std::int64_t elements, int bits);
int zero_code(int bits);  // of the mean: a byte whose codes all stand for zero

struct QuantisedAdamResult {
  Tensor parameter;
  QuantisedMoment mean, square;
  Tensor companion = {};
};

// `rate` and `step` (counted from 1) are float64 scalars; the gradient is multiplied by the scalar
// `gradient_scale` first.
QuantisedAdamResult quantised_adam_update(const Tensor& parameter, const Tensor& gradient,
                                          const QuantisedMoment& mean,
                                          const QuantisedMoment& square, const Tensor& rate,
                                          const Tensor& step, const Tensor& gradient_scale,
                                          const QuantisedAdamAttributes& attributes,
                                          const Tensor& companion = {});

// Operands in order.
struct QuantisedAdamUpdate {
  enum Input : int {
    parameter,
    gradient,
    mean_codes,
    mean_absmax,
    square_codes,
    square_absmax,
    rate,
    step,
    gradient_scale,
    companion
  };
  enum Output : int {
    new_parameter,
    new_mean_codes,
    new_mean_absmax,
    new_square_codes,
    new_square_absmax,
    new_companion
  };
};

const Op& quantised_adam_op();
const GroupOp& quantised_adam_group_op();
Kernel bind_quantised_adam_cpu(const KernelRequest& request,
                               const QuantisedAdamAttributes& attributes);
Kernel bind_quantised_adam_cuda(const KernelRequest& request,
                                const QuantisedAdamAttributes& attributes);
Kernel bind_quantised_adam_group_cuda(std::span<const KernelRequest> calls,
                                      std::span<const Attributes> attributes);

}  // namespace ebb
