// Panels of bfloat16, with AVX-512 BF16.
#include "ops/matmul/panels.h"
#include "ops/onednn.h"

#if defined(__x86_64__)
#define EBB_PANELS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#include "ops/matmul/bfloat16_pairs.h"
#include "ops/matmul/vector_panels.h"
#endif

namespace ebb {

#if defined(__x86_64__)

namespace {

struct Pairs : PairUnits {
  using Factor = __m512bh;

  EBB_PANELS static Factor load(const std::uint32_t* from) {
    return reinterpret_cast<Factor>(_mm512_loadu_si512(from));
  }
  EBB_PANELS static Factor spread(std::uint32_t pair) {
    return reinterpret_cast<Factor>(_mm512_set1_epi32(static_cast<int>(pair)));
  }
  EBB_PANELS static __m512 add(__m512 sum, Factor x, Factor y) {
    return _mm512_dpbf16_ps(sum, x, y);
  }
  EBB_PANELS static __m512 widened(const BFloat16* from, __mmask16 present) {
    const __m512i upper = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(upper, 16));
  }
  EBB_PANELS static void write(BFloat16* to, __mmask16 present, __m512 x) {
    _mm256_mask_storeu_epi16(to, present, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
};

}  // namespace

const PanelKernels<BFloat16>* bfloat16_vector_kernels() {
  static const bool works = onednn::has_isa(dnnl::cpu_isa::avx512_core_bf16);
  return works ? &vector_kernels<Pairs> : nullptr;
}

#else

const PanelKernels<BFloat16>* bfloat16_vector_kernels() { return nullptr; }

#endif

template <>
const PanelKernels<BFloat16>* panel_kernels() {
  const PanelKernels<BFloat16>* tiles = bfloat16_tile_kernels();
  return tiles ? tiles : bfloat16_vector_kernels();
}

}  // namespace ebb
