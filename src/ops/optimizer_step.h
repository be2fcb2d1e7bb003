// What the optimizers' update ops share: the scalars a step is given, and the type their state has.
#pragma once

#include <cmath>

#include "ops/dispatch.h"

namespace ebb {

// State and arithmetic are at least float32, whatever the parameter's dtype.
inline DType state_dtype(DType parameter) { return parameter == f64 ? f64 : f32; }

// The same, or bfloat16 where an op can keep its state in that.
inline DType kept_dtype(const Call& call, int input) {
  return call.dtype(input) == bf16 ? bf16 : state_dtype(call.dtype(0));
}

inline void require_scalar(const Call& call, int input, DType dtype, std::string_view what) {
  if (call.inputs[static_cast<std::size_t>(input)] != TensorType{{}, dtype})
    call.fail_shape(std::string(what) + " must be a scalar of " + std::string(name(dtype)));
}

inline void require_like_parameter(const Call& call, int input, DType dtype,
                                   std::string_view what) {
  if (call.inputs[static_cast<std::size_t>(input)] != TensorType{call.shape(0), dtype})
    call.fail_shape(std::string(what) + " must be " + to_string(TensorType{call.shape(0), dtype}));
}

// Calls make(TypeTag<T>{}, TypeTag<S>{}) with the type of the parameter and that of its state: the
// type it is computed in, or BFloat16.
template <class Make>
Kernel dispatch_state(const KernelRequest& request, DType parameter, DType state,
                      const Make& make) {
  return dispatch_floating(request, parameter, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return state == bf16 ? make(tag, TypeTag<BFloat16>{}) : make(tag, TypeTag<Compute<T>>{});
  });
}

}  // namespace ebb
