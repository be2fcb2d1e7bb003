// Parameters in CUDA kernels of optimizers: reads and writes a few neighbouring elements at a time
// in the compute type, for any storage form.
#pragma once

#include "ops/cuda/update.cuh"
#include "ops/optimizer_step.h"
#include "ops/parameter_bits.h"

namespace ebb::cuda {

// T is the stored type. Input 0 is the parameter and the last its companion, if there is one;
// outputs alike.
template <class T>
struct StoredParameter {
  using C = Compute<T>;
  using Kind = ParameterForm::Kind;
  const T* in;
  T* out;
  const void* companion;
  void* companion_out;
  const RandomState* random;
  ParameterForm form;

  StoredParameter() = default;
  StoredParameter(const KernelArgs& args, const ParameterForm& f)
      : in(args.in<T>(0)),
        out(args.out<T>(0)),
        companion(f.has_companion() ? args.inputs.back() : nullptr),
        companion_out(f.has_companion() ? args.outputs.back() : nullptr),
        random(&args.control->random),
        form(f) {}

  // Whether four elements may be read and written at once.
  bool aligned() const {
    return aligned_for_packs(in) && aligned_for_packs(out) && aligned_for_packs(companion) &&
           aligned_for_packs(companion_out);
  }

  // Elements i to i + n, n being 1, 2 or 4, and i a multiple of it.
  template <int n>
  __device__ void load(std::int64_t i, C (&x)[n]) const {
    load_some<n>(in + i, x);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (form.kind == Kind::compensated) {
        float rest[n];
        load_some<n>(static_cast<const BFloat16*>(companion) + i, rest);
#pragma unroll
        for (int k = 0; k < n; ++k) x[k] += rest[k];
      } else if (form.kind == Kind::completed) {
        std::uint16_t lower[n];
        load_lower<n>(i, lower);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const std::uint16_t upper = static_cast<std::uint16_t>(__float_as_uint(x[k]) >> 16);
          x[k] = __uint_as_float(CompletedFloat{upper, lower[k]}.bits());
        }
      }
    }
  }

  template <int n>
  __device__ void store(std::int64_t i, C (&x)[n]) const {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (form.kind != Kind::plain) return store_in_form<n>(i, x);
    }
    store_some<n>(out + i, x);
  }

 private:
  template <int n>
  __device__ static void load_some(const T* from, C (&x)[n]) {
    if constexpr (n == 2)
      x[0] = widen(from[0]), x[1] = widen(from[1]);
    else
      load_group<n>(from, x);
  }
  template <int n>
  __device__ static void store_some(T* to, const C (&x)[n]) {
    if constexpr (n == 2)
      to[0] = narrow<T>(x[0]), to[1] = narrow<T>(x[1]);
    else
      store_group<n>(to, x);
  }

  // The lower bits of n elements from i on; bits that are not stored are 0.
  template <int n>
  __device__ void load_lower(std::int64_t i, std::uint16_t (&lower)[n]) const {
    if (form.bits == 16) {
      const auto* from = static_cast<const std::uint16_t*>(companion) + i;
      if constexpr (n == 4) {
        const uint2 raw = *reinterpret_cast<const uint2*>(from);
        lower[0] = static_cast<std::uint16_t>(raw.x), lower[1] = raw.x >> 16;
        lower[2] = static_cast<std::uint16_t>(raw.y), lower[3] = raw.y >> 16;
      } else {
        for (int k = 0; k < n; ++k) lower[k] = from[k];
      }
    } else {
      const auto* from = static_cast<const std::uint8_t*>(companion) + i;
      if constexpr (n == 4) {
        const std::uint32_t raw = *reinterpret_cast<const std::uint32_t*>(from);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          lower[k] = static_cast<std::uint16_t>((raw >> (8 * k) & 0xffu) << 8);
      } else {
        for (int k = 0; k < n; ++k) lower[k] = static_cast<std::uint16_t>(from[k] << 8);
      }
    }
  }

  // Element i has word i % 4 of Philox counter i / 4.
  template <int n>
  __device__ void draw(std::int64_t i, std::uint32_t (&chance)[n]) const {
    const auto words = Philox(*random, RandomKey{form.key})(static_cast<std::uint64_t>(i / 4));
    if constexpr (n == 4) {
#pragma unroll
      for (int k = 0; k < 4; ++k) chance[k] = words[k];
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const int at = static_cast<int>(i % 4) + k;
        chance[k] = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
      }
    }
  }

  template <int n>
  __device__ void store_in_form(std::int64_t i, float (&x)[n]) const {
    std::uint32_t chance[n] = {};
    if (form.kind == Kind::stochastic || (form.kind == Kind::completed && form.bits == 8))
      draw<n>(i, chance);
    if (form.kind == Kind::stochastic) {
      BFloat16 rounded[n];
#pragma unroll
      for (int k = 0; k < n; ++k) rounded[k] = round_by_chance(x[k], chance[k] >> 16);
      write<n>(out + i, rounded);
    } else if (form.kind == Kind::compensated) {
      BFloat16 rounded[n], rest[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        rounded[k] = narrow<BFloat16>(x[k]);
        rest[k] = narrow<BFloat16>(x[k] - widen(rounded[k]));
      }
      write<n>(out + i, rounded);
      write<n>(static_cast<BFloat16*>(companion_out) + i, rest);
    } else {
      BFloat16 upper[n], lower[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        std::uint32_t bits = __float_as_uint(x[k]);
        if (form.bits == 8) bits = rounded_to_24_bits(bits, chance[k] >> 24);
        const CompletedFloat value = CompletedFloat::of_bits(bits);
        upper[k].bits = value.upper, lower[k].bits = value.lower;
      }
      write<n>(out + i, upper);
      if (form.bits == 16) {
        write<n>(static_cast<BFloat16*>(companion_out) + i, lower);
      } else {
        std::uint8_t* to = static_cast<std::uint8_t*>(companion_out) + i;
        if constexpr (n == 4)
          *reinterpret_cast<std::uint32_t*>(to) =
              (lower[0].bits >> 8) | (lower[1].bits & 0xff00u) |
              (static_cast<std::uint32_t>(lower[2].bits & 0xff00u) << 8) |
              (static_cast<std::uint32_t>(lower[3].bits & 0xff00u) << 16);
        else
          for (int k = 0; k < n; ++k) to[k] = static_cast<std::uint8_t>(lower[k].bits >> 8);
      }
    }
  }

  template <int n>
  __device__ static void write(BFloat16* to, const BFloat16 (&values)[n]) {
    if constexpr (n == 4)
      *reinterpret_cast<uint2*>(to) =
          make_uint2(values[0].bits | static_cast<unsigned>(values[1].bits) << 16,
                     values[2].bits | static_cast<unsigned>(values[3].bits) << 16);
    else
      for (int k = 0; k < n; ++k) to[k] = values[k];
  }
};

// A kernel that reads the gradient scale of each of its calls and does nothing when it is 0.
// Outputs that do not lie over their inputs are made equal to them first.
inline Kernel skippable_on_device(std::span<const KernelRequest> calls, Kernel kernel) {
  struct Pair {
    std::size_t output, input;  // among those of all calls
    std::size_t bytes;
  };
  std::vector<Pair> pairs;
  std::size_t inputs = 0, outputs = 0;
  for (const KernelRequest& call : calls) {
    for (const InPlace& pair : call.op.in_place())
      if (static_cast<std::size_t>(pair.output) < call.outputs.size())
        pairs.push_back({outputs + static_cast<std::size_t>(pair.output),
                         inputs + static_cast<std::size_t>(pair.input),
                         static_cast<std::size_t>(call.out(pair.output).type.bytes().count)});
    inputs += call.inputs.size(), outputs += call.outputs.size();
  }
  return {[=, run = std::move(kernel.run)](const KernelArgs& args) {
            for (const auto& [output, input, bytes] : pairs)
              if (args.outputs[output] != args.inputs[input])
                EBB_CUDA_CHECK(cudaMemcpyAsync(args.outputs[output], args.inputs[input], bytes,
                                               cudaMemcpyDeviceToDevice, stream_of(args)));
            run(args);
          },
          kernel.workspace};
}

// The elements of each call's parameter.
inline std::vector<std::int64_t> elements_of(std::span<const KernelRequest> calls) {
  std::vector<std::int64_t> counts;
  for (const KernelRequest& call : calls) counts.push_back(call.out().shape().elements());
  return counts;
}

// The attributes of each call of a group.
template <class A>
std::vector<A> typed(std::span<const Attributes> attributes) {
  std::vector<A> result;
  for (const Attributes& each : attributes) result.push_back(each.as<A>());
  return result;
}

// Calls make(TypeTag<T>{}, TypeTag<G>{}) with the types of the parameter and of its gradient.
template <class Make>
Kernel dispatch_gradient(const KernelRequest& request, const Make& make) {
  const DType gradient = request.in(1).dtype();
  if (request.in(0).dtype() == f32 && gradient != f32)
    return gradient == f16 ? make(TypeTag<float>{}, TypeTag<Half>{})
                           : make(TypeTag<float>{}, TypeTag<BFloat16>{});
  return dispatch_floating(request, request.in(0).dtype(),
                           [&](auto tag) { return make(tag, tag); });
}

// The same, and the type of the state: what it is computed in, or BFloat16.
template <class Make>
Kernel dispatch_update(const KernelRequest& request, DType state, const Make& make) {
  return dispatch_gradient(request, [&](auto parameter, auto gradient) {
    using T = typename decltype(parameter)::type;
    return state == bf16 ? make(parameter, gradient, TypeTag<BFloat16>{})
                         : make(parameter, gradient, TypeTag<Compute<T>>{});
  });
}

// An elementwise update, for one call or a group of up to `most`. The kernel gets the states of all
// calls and the attributes of the first, from which it reads the values that all calls share.
template <class State, int most, class A>
Kernel update_kernel(const char* name, void (*kernel)(Calls<State, most>, A),
                     std::span<const KernelRequest> calls, const std::vector<A>& attributes) {
  return skippable_on_device(
      calls, {[name, kernel, attributes, counts = elements_of(calls)](const KernelArgs& args) {
        Calls<State, most> all{};
        for (std::size_t i = 0; i < counts.size(); ++i)
          all.calls[i] = {call_of(args, i, counts.size()), attributes[i], counts[i]};
        const std::int64_t largest = *std::max_element(counts.begin(), counts.end());
        launch(
            {args, name, grid_of_calls(update_blocks(largest), counts.size()), dim3(item_threads)},
            kernel, all, attributes[0]);
      }});
}

}  // namespace ebb::cuda
