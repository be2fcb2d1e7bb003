// Parameters and gradients in CPU kernels of optimizers: runs of elements in the compute type, for
// any storage form.
#pragma once

#include <algorithm>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/parameter_bits.h"
#include "ops/pointwise/convert.h"
#include "ops/pointwise/philox_words.h"

namespace ebb {

// C is float, or double for parameters in double.
template <class C>
class ParameterRuns {
 public:
  // Input 0 is the parameter, 1 the gradient, and the last the companion, if there is one; outputs
  // alike.
  ParameterRuns(const KernelRequest& request, const ParameterForm& form)
      : elements_(request.out().shape().elements()),
        parameter_(request.in(0).dtype()),
        gradient_(request.in(1).dtype()),
        form_(form) {}

  std::int64_t elements() const { return elements_; }

  // Calls body(at, count, x, gradient, out) for runs of all elements, some on other threads:
  // element j of x, the gradient and out is element at + j. `out` may be `x`.
  template <class Body>
  void for_all(const KernelArgs& args, const Body& body) const {
    parallel_for((elements_ + run - 1) / run, (1 << 14) / run,
                 [&](std::int64_t first, std::int64_t last) {
                   for_range(args, first * run, std::min(elements_, last * run), body);
                 });
  }

  // The same for elements [begin, end), on this thread.
  template <class Body>
  void for_range(const KernelArgs& args, std::int64_t begin, std::int64_t end,
                 const Body& body) const {
    if (as_they_lie()) {
      body(begin, end - begin, args.in<C>(0) + begin, args.in<C>(1) + begin,
           args.out<C>(0) + begin);
      return;
    }
    alignas(64) C x[run], g[run];
    while (begin < end) {
      // Runs end at multiples of their length, so that random numbers do not depend on how work is
      // split.
      const std::int64_t count = std::min(end, (begin / run + 1) * run) - begin;
      load(args, begin, count, x);
      body(begin, count, x, gradient(args, begin, count, g), x);
      store(args, begin, count, x);
      begin += count;
    }
  }

  // The parameter's stored values, without the companion: [begin, begin + count), at most `run` of
  // them.
  const C* rounded(const KernelArgs& args, std::int64_t begin, std::int64_t count, C* area) const {
    return values(args.inputs[0], parameter_, begin, count, area);
  }

  static constexpr std::int64_t run = 16 * philox_counters;

 private:
  using Kind = ParameterForm::Kind;

  bool as_they_lie() const {
    return form_.kind == Kind::plain && parameter_ == dtype_of<C> && gradient_ == dtype_of<C>;
  }

  static const C* values(const std::byte* from, DType dtype, std::int64_t begin, std::int64_t count,
                         C* area) {
    if (dtype == dtype_of<C>) return reinterpret_cast<const C*>(from) + begin;
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == f16)
        widen(reinterpret_cast<const MachineHalf*>(from) + begin, area, count);
      else
        widen(reinterpret_cast<const BFloat16*>(from) + begin, area, count);
    }
    return area;
  }

  const C* gradient(const KernelArgs& args, std::int64_t begin, std::int64_t count, C* area) const {
    return values(args.inputs[1], gradient_, begin, count, area);
  }

  void load(const KernelArgs& args, std::int64_t begin, std::int64_t count, C* x) const {
    if constexpr (std::is_same_v<C, float>) {
      if (form_.kind == Kind::completed) {
        const BFloat16* p = args.in<BFloat16>(0) + begin;
        const std::byte* companion = args.inputs.back();
        for (std::int64_t j = 0; j < count; ++j) {
          CompletedFloat value{p[j].bits, 0};
          if (form_.bits == 16)
            value.lower = reinterpret_cast<const std::uint16_t*>(companion)[begin + j];
          else
            value.lower = static_cast<std::uint16_t>(
                reinterpret_cast<const std::uint8_t*>(companion)[begin + j] << 8);
          x[j] = std::bit_cast<float>(value.bits());
        }
        return;
      }
    }
    const C* stored = values(args.inputs[0], parameter_, begin, count, x);
    if (stored != x) std::copy_n(stored, count, x);
    if constexpr (std::is_same_v<C, float>) {
      if (form_.kind != Kind::compensated) return;
      const BFloat16* rest = reinterpret_cast<const BFloat16*>(args.inputs.back()) + begin;
      for (std::int64_t j = 0; j < count; ++j) x[j] += static_cast<float>(rest[j]);
    }
  }

  void store(const KernelArgs& args, std::int64_t begin, std::int64_t count, const C* x) const {
    if (parameter_ == dtype_of<C>) {
      std::copy_n(x, count, args.out<C>(0) + begin);
      return;
    }
    if constexpr (std::is_same_v<C, float>) {
      if (parameter_ == f16)
        narrow(x, args.out<MachineHalf>(0) + begin, count);
      else
        store_bfloat16(args, begin, count, x);
    }
  }

  void store_bfloat16(const KernelArgs& args, std::int64_t begin, std::int64_t count,
                      const float* x) const {
    BFloat16* p = args.out<BFloat16>(0) + begin;
    std::byte* companion = args.outputs.back();
    std::uint32_t words[run];
    if (form_.draws()) draw(args, begin / run * run, words);
    const std::uint32_t* chance = words + begin % run;
    switch (form_.kind) {
      case Kind::plain:
        return narrow(x, p, count);
      case Kind::stochastic:
        for (std::int64_t j = 0; j < count; ++j) p[j] = round_by_chance(x[j], chance[j] >> 16);
        return;
      case Kind::compensated: {
        BFloat16* rest = reinterpret_cast<BFloat16*>(companion) + begin;
        for (std::int64_t j = 0; j < count; ++j) {
          p[j] = BFloat16(x[j]);
          rest[j] = BFloat16(x[j] - static_cast<float>(p[j]));
        }
        return;
      }
      case Kind::completed:
        break;
    }
    if (form_.bits == 16) {
      std::uint16_t* lower = reinterpret_cast<std::uint16_t*>(companion) + begin;
      for (std::int64_t j = 0; j < count; ++j) {
        const auto value = CompletedFloat::of_bits(std::bit_cast<std::uint32_t>(x[j]));
        p[j].bits = value.upper, lower[j] = value.lower;
      }
      return;
    }
    std::uint8_t* lower = reinterpret_cast<std::uint8_t*>(companion) + begin;
    for (std::int64_t j = 0; j < count; ++j) {
      const auto value = CompletedFloat::of_bits(
          rounded_to_24_bits(std::bit_cast<std::uint32_t>(x[j]), chance[j] >> 24));
      p[j].bits = value.upper, lower[j] = static_cast<std::uint8_t>(value.lower >> 8);
    }
  }

  // Element i has word i % 4 of Philox counter i / 4.
  void draw(const KernelArgs& args, std::int64_t begin, std::uint32_t (&words)[run]) const {
    const Philox philox(args.random, {form_.key});
    std::uint32_t some[4 * philox_counters];
    for (std::int64_t at = 0; at < run; at += 4 * philox_counters) {
      philox_words(philox, static_cast<std::uint64_t>((begin + at) / 4), some);
      std::copy_n(some, 4 * philox_counters, words + at);
    }
  }

  std::int64_t elements_;
  DType parameter_, gradient_;
  ParameterForm form_;
};

}  // namespace ebb
