// float16 in CPU kernels: the bits of ebb::Half, converted by the processor's own instructions
// where the library is compiled for a processor that has them. The code depends on -march, so no
// public header includes this one.
#pragma once

#include "ebb/half.h"

#if defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace ebb {

#if defined(__CUDACC__)
// Device code has conversions of its own (ops/cuda/element.cuh).
using MachineHalf = Half;
#else
struct MachineHalf {
  std::uint16_t bits = 0;

  MachineHalf() = default;
#if defined(__F16C__)
  MachineHalf(float value)
      : bits(static_cast<std::uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))) {}
  operator float() const { return _cvtsh_ss(bits); }
#else
  MachineHalf(float value) : bits(Half::encode(value)) {}
  operator float() const { return Half::decode(bits); }
#endif
};
#endif

}  // namespace ebb
