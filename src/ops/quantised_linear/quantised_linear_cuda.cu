// With few rows of x, a warp computes one column of the result and reads its codes directly
// (forward only). Otherwise parts of the weight are unpacked into the workspace, in the dtype of x,
// and multiplied by cuBLASLt. Parts follow the columns of the result, so that no sum is divided.
#include <algorithm>
#include <optional>

#include "ebb/storage.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/dispatch.h"
#include "ops/matmul/gemm_cuda.h"
#include "ops/quantised_linear/levels.h"
#include "ops/quantised_linear/quantised_linear.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

using namespace cuda;

constexpr std::int64_t few_rows = 8;
constexpr Bytes most_unpacked = 64_MiB;  // of a weight, at once
constexpr int run = 8;                   // codes that a thread reads at once; divides every block

// Levels of four-bit codes, as a kernel's argument.
struct LevelTable {
  float of[16];

  explicit LevelTable(LowBits kind) {
    for (int i = 0; i < 16; ++i) of[i] = four_bit_levels(kind)[static_cast<std::size_t>(i)];
  }
};

// The parts of packed bytes.
struct Packed {
  const std::uint8_t *codes, *small;  // small: scales in 8 bits, or null
  const float* scales;                // of blocks; or the offset and the groups' scales
  std::int64_t row_bytes, blocks, columns;
  int block_shift;
  bool eight;

  Packed(const Encoding& e, const std::uint8_t* bytes)
      : codes(bytes),
        small(e.scales_in_8_bits ? bytes + e.scales_at() : nullptr),
        scales(reinterpret_cast<const float*>(
            bytes + (e.scales_in_8_bits ? e.offset_at() : e.scales_at()))),
        row_bytes(e.row_bytes()),
        blocks(e.blocks_in_row()),
        columns(e.columns),
        block_shift(0),
        eight(e.bits() == 8) {
    while ((std::int64_t{1} << block_shift) < e.block) ++block_shift;
  }

  __device__ float scale(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * blocks + (column >> block_shift);
    if (!small) return scales[i];
    return __fmaf_rn(scales[1 + i / Encoding::group_size],
                     static_cast<float>(static_cast<int>(small[i]) - scale_zero), scales[0]);
  }

  // Reads the codes of `count` elements from `column` on, a multiple of `run`; the remaining
  // numbers are not changed.
  __device__ void read(std::int64_t row, std::int64_t column, int count, int (&to)[run]) const {
    const std::uint8_t* from = codes + row * row_bytes + (eight ? column : column / 2);
    if (eight) {
#pragma unroll
      for (int i = 0; i < run; ++i)
        if (i < count) to[i] = from[i];
      return;
    }
    if (count == run && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {
      const std::uint32_t all = *reinterpret_cast<const std::uint32_t*>(from);
#pragma unroll
      for (int i = 0; i < run; ++i) to[i] = static_cast<int>((all >> (4 * i)) & 15u);
      return;
    }
#pragma unroll
    for (int i = 0; i < run; ++i)
      if (i < count) to[i] = i % 2 == 0 ? from[i / 2] & 15 : from[i / 2] >> 4;
  }
};

// Levels in shared memory, one copy for each lane of a warp, so that lookups never conflict.
struct SharedLevels {
  float (*table)[32];
  bool eight;

  __device__ SharedLevels(const LevelTable& levels, bool eight_bits, float (*memory)[32])
      : table(memory), eight(eight_bits) {
    for (int i = static_cast<int>(threadIdx.x); i < 16 * 32; i += static_cast<int>(blockDim.x))
      table[i / 32][i % 32] = levels.of[i / 32];
    __syncthreads();
  }
  __device__ float operator()(int code) const {
    return eight ? static_cast<float>(code - int8_zero) : table[code][threadIdx.x % 32];
  }
};

// Unpacks rows [row, row + rows) and columns [column, column + columns), row by row; `column` is a
// multiple of the block.
template <class S>
__global__ void __launch_bounds__(item_threads)
    unpack_part(Packed w, LevelTable table, std::int64_t row, std::int64_t rows,
                std::int64_t column, std::int64_t columns, S* out) {
  __shared__ float memory[16][32];
  const SharedLevels level(table, w.eight, memory);
  const std::int64_t runs = ceil_div(columns, run);
  for_items(rows * runs, [&](std::int64_t item) {
    const std::int64_t r = quotient(item, runs), at = (item - r * runs) * run;
    const int count = static_cast<int>(columns - at < run ? columns - at : run);
    int codes[run];
    w.read(row + r, column + at, count, codes);
    const Compute<S> scale = static_cast<Compute<S>>(w.scale(row + r, column + at));
    S* to = out + r * columns + at;
    if constexpr (sizeof(S) == 2) {
      if (count == run && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        Compute<S> values[run];
#pragma unroll
        for (int i = 0; i < run; ++i) values[i] = level(codes[i]) * scale;
        store_pack(to, values);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < run; ++i)
      if (i < count) to[i] = narrow<S>(static_cast<Compute<S>>(level(codes[i])) * scale);
  });
}

template <class S>
void unpack(const KernelArgs& args, const char* op, const Encoding& e, const std::uint8_t* bytes,
            std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
            S* out) {
  launch({args, op, item_grid(rows * ceil_div(columns, run)), dim3(item_threads)}, unpack_part<S>,
         Packed(e, bytes), LevelTable(e.kind), row, rows, column, columns, out);
}

// --- Few rows ---

constexpr int warps = 8;  // of a block of threads: one row of the weight each

// out (count, rows) = x (count, columns) · Wᵀ. A sum has the same order for every count.
template <class S, int count>
__global__ void __launch_bounds__(32 * warps)
    direct(Packed w, LevelTable table, std::int64_t rows, const S* x, S* out) {
  using C = Compute<S>;
  __shared__ float memory[16][32];
  const SharedLevels level(table, w.eight, memory);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  C sums[count] = {};
  // Several reads of codes are in flight at once, because one alone would not use the memory's
  // bandwidth.
#pragma unroll 4
  for (std::int64_t at = lane * run; at < w.columns; at += 32 * run) {
    const int size = static_cast<int>(w.columns - at < run ? w.columns - at : run);
    int codes[run];
    w.read(row, at, size, codes);
    const C scale = static_cast<C>(w.scale(row, at));
    C weights[run];
#pragma unroll
    for (int i = 0; i < run; ++i)
      weights[i] = i < size ? static_cast<C>(level(codes[i])) * scale : C(0);
#pragma unroll
    for (int m = 0; m < count; ++m) {
      const S* from = x + m * w.columns + at;
      C values[run] = {};
      bool whole = false;
      if constexpr (sizeof(S) == 2) {
        whole = size == run && reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
        if (whole) load_pack(from, values);
      }
      if (!whole) {
#pragma unroll
        for (int i = 0; i < run; ++i)
          if (i < size) values[i] = widen(from[i]);
      }
      C part = C(0);
#pragma unroll
      for (int i = 0; i < run; ++i) part += weights[i] * values[i];
      sums[m] += part;
    }
  }
#pragma unroll
  for (int m = 0; m < count; ++m) {
    const C total = warp_join(sums[m], Plus{});
    if (lane == 0) out[m * rows + row] = narrow<S>(total);
  }
}

template <class S>
struct Direct {
  Encoding e;
  std::int64_t rows;

  void operator()(const KernelArgs& args) const {
    const Packed w(e, args.in<std::uint8_t>(1));
    const LevelTable table(e.kind);
    const dim3 grid(static_cast<unsigned>(ceil_div(e.rows, warps)));
    for (std::int64_t m = 0; m < rows;) {
      const S* x = args.in<S>(0) + m * e.columns;
      S* out = args.out<S>() + m * e.rows;
      const auto start = [&](auto kernel, std::int64_t count) {
        launch({args, "quantised_linear", grid, dim3(32 * warps)}, kernel, w, table, e.rows, x,
               out);
        m += count;
      };
      const std::int64_t left = rows - m;
      if (left >= 8)
        start(direct<S, 8>, 8);
      else if (left >= 4)
        start(direct<S, 4>, 4);
      else if (left >= 2)
        start(direct<S, 2>, 2);
      else
        start(direct<S, 1>, 1);
    }
  }
};

// --- Parts ---

template <class S>
__global__ void fill_zeros(S* out, std::int64_t count) {
  for_items(count, [&](std::int64_t i) { out[i] = narrow<S>(Compute<S>(0)); });
}

template <class S>
class InParts {
 public:
  InParts(const KernelRequest& request, const QuantisedLinearAttributes& a)
      : a_(a), rows_(request.in(0).shape()[0]) {
    const std::int64_t inner = a.inner(), outer = a.outer();
    if (rows_ == 0 || outer == 0 || inner == 0) return;
    // Parts of equal size, multiples of every block; the last may be smaller.
    const std::int64_t size = sizeof(S), whole = inner * outer * size,
                       parts = ceil_div(whole, most_unpacked.count);
    width_ = std::min(outer, ceil_div(ceil_div(outer, parts), 1024) * 1024);
    const std::int64_t last = outer % width_;
    WorkspaceAreas areas;
    areas.add<S>(inner * width_);
    main_.emplace(request.target, spec(request, width_));
    if (last > 0) rest_.emplace(request.target, spec(request, last));
    library_at_ = areas.total();
    workspace_ = library_at_ + std::max(main_->workspace(), rest_ ? rest_->workspace() : Bytes{});
  }

  Kernel kernel() const {
    Kernel result{*this, workspace_};
    if (!main_ || main_->ms() == 0.0 || (rest_ && rest_->ms() == 0.0)) return result;
    result.library_ms =
        static_cast<double>(a_.outer() / width_) * main_->ms() + (rest_ ? rest_->ms() : 0.0);
    const std::int64_t elements = a_.inner() * a_.outer();
    result.beside = {static_cast<double>(4 * elements),
                     Bytes{a_.encoding.bytes() + elements * static_cast<std::int64_t>(sizeof(S))}};
    return result;
  }

  void operator()(const KernelArgs& args) const {
    const std::int64_t inner = a_.inner(), outer = a_.outer();
    if (!main_) {
      launch({args, "quantised_linear", item_grid(rows_ * outer), dim3(item_threads)},
             fill_zeros<S>, args.out<S>(), rows_ * outer);
      return;
    }
    const std::uint8_t* packed = args.in<std::uint8_t>(1);
    S* weight = args.scratch<S>();
    for (std::int64_t column = 0; column < outer; column += width_) {
      const std::int64_t columns = std::min(width_, outer - column);
      if (a_.back)
        unpack(args, "quantised_linear", a_.encoding, packed, 0, inner, column, columns, weight);
      else
        unpack(args, "quantised_linear", a_.encoding, packed, column, columns, 0, inner, weight);
      const Gemm& gemm = columns == width_ ? *main_ : *rest_;
      gemm.run(args, args.in<S>(0), weight, args.out<S>() + column,
               args.scratch<std::byte>(library_at_));
    }
  }

 private:
  GemmSpec spec(const KernelRequest& request, std::int64_t columns) const {
    const std::int64_t inner = a_.inner();
    GemmSpec result;
    result.a = MatrixLayout::plain(rows_, inner);
    result.b =
        a_.back ? MatrixLayout::plain(inner, columns) : MatrixLayout::swapped(inner, columns);
    result.dtype = result.out = request.out().dtype();
    result.out_lead = a_.outer();
    result.tf32 = request.target.tf32 && result.dtype == f32;
    // Parts begin at multiples of 1024 elements.
    result.align_a = result.align_b = result.align_out = buffer_alignment.count;
    return result;
  }

  QuantisedLinearAttributes a_;
  std::int64_t rows_, width_ = 0;
  std::optional<Gemm> main_, rest_;
  Bytes library_at_, workspace_;
};

// --- Packing: only at the start, so simple rather than fast ---

struct Encoder {
  float midpoints[15];
  float top;
  LowBits kind;

  explicit Encoder(LowBits k) : top(top_level(k)), kind(k) {
    for (std::size_t i = 0; i < 15; ++i) midpoints[i] = (nf4_levels[i] + nf4_levels[i + 1]) / 2;
  }
  __device__ int operator()(float x) const {
    if (kind == LowBits::nf4) {
      int code = 0;
      for (const float midpoint : midpoints) code += x >= midpoint ? 1 : 0;
      return code;
    }
    const float level = ::rintf(::fminf(::fmaxf(x, -top), top));
    return static_cast<int>(level) + (kind == LowBits::int8 ? int8_zero : 8);
  }
};

// One thread for each block.
template <class S>
__global__ void pack_blocks(const S* in, Encoding e, Encoder encode, std::uint8_t* bytes,
                            float* scales) {
  const std::int64_t blocks = (e.columns + e.block - 1) / e.block;
  const bool eight = e.kind == LowBits::int8;
  const std::int64_t row_bytes = eight ? e.columns : (e.columns + 1) / 2;
  for_items(e.rows * blocks, [&](std::int64_t item) {
    const std::int64_t row = quotient(item, blocks), at = (item - row * blocks) * e.block;
    const std::int64_t count = e.columns - at < e.block ? e.columns - at : e.block;
    const S* from = in + row * e.columns + at;
    const auto value = [&](std::int64_t i) { return static_cast<float>(widen(from[i])); };
    float largest = 0.0f;
    bool finite = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const float magnitude = ::fabsf(value(i));
      finite = finite && magnitude <= 3.402823466e38f;
      largest = ::fmaxf(largest, magnitude);
    }
    const float scale = __fdiv_rn(largest, encode.top);
    const bool zero = !finite || scale < 1.175494351e-38f;
    const float inverse = zero ? 0.0f : __fdiv_rn(1.0f, scale);
    const auto code = [&](std::int64_t i) {
      return encode(zero ? 0.0f : __fmul_rn(value(i), inverse));
    };
    std::uint8_t* to = bytes + row * row_bytes + (eight ? at : at / 2);
    if (eight) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(code(i));
    } else {
      for (std::int64_t i = 0; i < count; i += 2)
        to[i / 2] = static_cast<std::uint8_t>(code(i) | ((i + 1 < count ? code(i + 1) : 0) << 4));
    }
    scales[item] = !finite ? __int_as_float(0x7fc00000) : zero ? 0.0f : scale;
  });
}

// The mean of all scales in the CPU's order, computed by one thread; then writes zeros between the
// parts.
__global__ void pack_offset(const float* scales, std::int64_t count, float* offset,
                            std::uint8_t* gap, std::int64_t gap_size) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(scales[i]);
  *offset = count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0.0f;
  for (std::int64_t i = 0; i < gap_size; ++i) gap[i] = 0;
}

__global__ void fill_bytes(std::uint8_t* to, std::int64_t count) {
  for_items(count, [&](std::int64_t i) { to[i] = 0; });
}

// One thread for each group of scales.
__global__ void pack_scales(const float* scales, std::int64_t count, std::int64_t groups,
                            float* offset_and_steps, std::uint8_t* small) {
  for_items(groups, [&](std::int64_t group) {
    const float offset = offset_and_steps[0];
    const std::int64_t begin = group * Encoding::group_size,
                       end = begin + Encoding::group_size < count ? begin + Encoding::group_size
                                                                  : count;
    float largest = 0.0f;
    for (std::int64_t i = begin; i < end; ++i)
      largest = ::fmaxf(largest, ::fabsf(scales[i] - offset));
    const float step = __fdiv_rn(largest, 127.0f);
    offset_and_steps[1 + group] = step;
    for (std::int64_t i = begin; i < end; ++i) {
      const float level = step > 0.0f ? ::rintf(__fdiv_rn(scales[i] - offset, step)) : 0.0f;
      const float bounded = level >= -127.0f && level <= 127.0f ? level : 0.0f;
      small[i] = static_cast<std::uint8_t>(static_cast<int>(bounded) + scale_zero);
    }
  });
}

template <class S>
void pack_all(const Encoding& e, const KernelArgs& args) {
  std::uint8_t* bytes = args.out<std::uint8_t>();
  const std::int64_t count = e.scales(), codes = e.rows * e.row_bytes();
  float* scales =
      e.scales_in_8_bits ? args.scratch<float>() : reinterpret_cast<float*>(bytes + e.scales_at());
  const auto items = [&](std::int64_t n) {
    return Launch{args, "quantise", item_grid(n), dim3(item_threads)};
  };
  launch(items(count), pack_blocks<S>, args.in<S>(0), e, Encoder(e.kind), bytes, scales);
  launch(items(e.scales_at() - codes), fill_bytes, bytes + codes, e.scales_at() - codes);
  if (!e.scales_in_8_bits) return;
  float* offset = reinterpret_cast<float*>(bytes + e.offset_at());
  std::uint8_t* small = bytes + e.scales_at();
  launch({args, "quantise", dim3(1), dim3(1)}, pack_offset, scales, count, offset, small + count,
         e.offset_at() - e.scales_at() - count);
  launch(items(e.groups()), pack_scales, scales, count, e.groups(), offset, small);
}

}  // namespace

Kernel bind_quantise_cuda(const KernelRequest& request, const Encoding& e) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[e](const KernelArgs& args) { pack_all<S>(e, args); },
                  e.scales_in_8_bits ? Bytes{4 * e.scales()} : Bytes{}};
  });
}

Kernel bind_dequantise_cuda(const KernelRequest& request, const DequantiseAttributes& a) {
  return dispatch_floating(request, a.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[e = a.encoding](const KernelArgs& args) {
      unpack(args, "dequantise", e, args.in<std::uint8_t>(0), 0, e.rows, 0, e.columns,
             args.out<S>());
    }};
  });
}

Kernel bind_quantised_linear_cuda(const KernelRequest& request,
                                  const QuantisedLinearAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const std::int64_t rows = request.in(0).shape()[0];
    if (rows <= few_rows && !a.back && a.inner() > 0) return Kernel{Direct<S>{a.encoding, rows}};
    return InParts<S>(request, a).kernel();
  });
}

}  // namespace ebb
