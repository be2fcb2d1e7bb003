// Shared by the optimizers' update ops: scalar inputs, types of gradients, state and companions,
// and skipped steps.
#pragma once

#include <cmath>
#include <cstring>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ops/dispatch.h"
#include "ops/parameter_bits.h"

namespace ebb {

// State and arithmetic are at least float32, whatever the parameter's dtype.
inline DType state_dtype(DType parameter) { return parameter == f64 ? f64 : f32; }

// The same, or bfloat16 if the op supports state in bfloat16.
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

// Gradients have the parameter's dtype, or a half type where the parameter is float32.
inline void require_gradient(const Call& call) {
  const DType own = call.dtype(1);
  const bool half = call.dtype(0) == f32 && (own == f16 || own == bf16);
  require_like_parameter(call, 1, half ? own : call.dtype(0), "the gradient");
}

// Checks the companion of a parameter in `form`, which is the last input and must be number
// `input`, and adds its type to the outputs.
inline void require_form(const Call& call, int input, const ParameterForm& form,
                         std::vector<TensorType>& outputs) {
  if (form.kind != ParameterForm::Kind::plain && call.dtype(0) != bf16)
    call.fail_dtype("only parameters in bfloat16 are rounded by chance or have companions");
  if (form.kind == ParameterForm::Kind::completed && form.bits != 8 && form.bits != 16)
    call.fail_value("a parameter is completed by 8 or 16 bits, not " + std::to_string(form.bits));
  const int expected = input + (form.has_companion() ? 1 : 0);
  if (call.count() != expected)
    call.fail_value("takes " + std::to_string(expected) + " inputs, but " +
                    std::to_string(call.count()) + " came");
  if (!form.has_companion()) return;
  const TensorType type = form.companion(call.inputs[0]);
  if (call.inputs[static_cast<std::size_t>(input)] != type)
    call.fail_shape("the parameter's companion must be " + to_string(type));
  outputs.push_back(type);
}

// For references: the parameter's value from the stored value and its companion, and both from a
// new value. References omit stochastic rounding, whose expectation is the unrounded value, and
// cannot describe lower bits.
inline Tensor opened(std::span<const Tensor> in, const ParameterForm& form) {
  if (form.kind == ParameterForm::Kind::completed)
    throw ValueError("a step on parameters completed by bits has no derivative");
  const Tensor p = cast(in[0], state_dtype(in[0].dtype()));
  return form.has_companion() ? p + cast(in.back(), p.dtype()) : p;
}
inline void close(const Tensor& value, DType dtype, const ParameterForm& form,
                  std::vector<Tensor>& out) {
  out[0] = cast(value, dtype);
  if (form.has_companion()) out.push_back(cast(value - cast(out[0], value.dtype()), dtype));
}

// A gradient scale of 0 skips the step (see train/loss_scale.h): nothing changes. `scale` is the
// index of that input.
template <class C>
Kernel skippable(const KernelRequest& request, int scale, Kernel kernel) {
  struct Kept {
    std::size_t output, input, bytes;
  };
  std::vector<Kept> kept;
  for (const InPlace& pair : request.op.in_place())
    if (static_cast<std::size_t>(pair.output) < request.outputs.size())
      kept.push_back({static_cast<std::size_t>(pair.output), static_cast<std::size_t>(pair.input),
                      static_cast<std::size_t>(request.out(pair.output).type.bytes().count)});
  return {[=, run = std::move(kernel.run)](const KernelArgs& args) {
            if (*args.in<C>(scale) != C(0)) return run(args);
            for (const auto& [output, input, bytes] : kept)
              if (args.outputs[output] != args.inputs[input])
                std::memcpy(args.outputs[output], args.inputs[input], bytes);
          },
          kernel.workspace};
}

// Calls make(TypeTag<C>{}, TypeTag<S>{}) with the compute type of a step and the type of its state.
template <class Make>
Kernel dispatch_step(const KernelRequest& request, DType parameter, DType state, const Make& make) {
  if (parameter == f64)
    return state == bf16 ? make(TypeTag<double>{}, TypeTag<BFloat16>{})
                         : make(TypeTag<double>{}, TypeTag<double>{});
  if (!is_floating(parameter)) request.no_kernel(parameter);
  return state == bf16 ? make(TypeTag<float>{}, TypeTag<BFloat16>{})
                       : make(TypeTag<float>{}, TypeTag<float>{});
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
