// Panels of float32, with AVX-512.
#include "ops/matmul/panels.h"
#include "ops/onednn.h"

#if defined(__x86_64__)
#define EBB_PANELS __attribute__((target("avx512f,avx512bw,avx512vl")))
#include "ops/matmul/vector_panels.h"
#endif

namespace ebb {

#if defined(__x86_64__)

namespace {

struct Floats {
  using Number = float;
  using Unit = float;
  using Factor = __m512;

  EBB_PANELS static Factor load(const float* from) { return _mm512_loadu_ps(from); }
  EBB_PANELS static Factor spread(float x) { return _mm512_set1_ps(x); }
  EBB_PANELS static __m512i run(const float* from, std::int64_t count) {
    return _mm512_maskz_loadu_epi32(first16(count), from);
  }
  EBB_PANELS static __m512 add(__m512 sum, Factor x, Factor y) {
    return _mm512_fmadd_ps(x, y, sum);
  }
  EBB_PANELS static __m512 widened(const float* from, __mmask16 present) {
    return _mm512_maskz_loadu_ps(present, from);
  }
  EBB_PANELS static void write(float* to, __mmask16 present, __m512 x) {
    _mm512_mask_storeu_ps(to, present, x);
  }

  // Neighbouring lanes are neighbours in memory: they are copied run by run.
  EBB_PANELS static void pack_along_lanes(const PanelSource<float>& s, int width, float* to) {
    const __mmask16 read_low = first16(s.lanes), read_high = first16(s.lanes - panel_lanes);
    const __mmask16 written_low = first16(width), written_high = first16(width - panel_lanes);
    const float* from = s.from;
    for (std::int64_t k = 0; k < s.depth; ++k, from += s.depth_stride, to += width) {
      _mm512_mask_storeu_ps(to, written_low, _mm512_maskz_loadu_ps(read_low, from));
      if (width > panel_lanes)
        _mm512_mask_storeu_ps(to + panel_lanes, written_high,
                              _mm512_maskz_loadu_ps(read_high, from + panel_lanes));
    }
  }
};

}  // namespace

template <>
const PanelKernels<float>* panel_kernels() {
  static const bool works = onednn::has_isa(dnnl::cpu_isa::avx512_core);
  return works ? &vector_kernels<Floats> : nullptr;
}

#else

template <>
const PanelKernels<float>* panel_kernels() {
  return nullptr;
}

#endif

}  // namespace ebb
