// Products of a resident kernel. Sums have the order of few_rows_cuda.cu, so that both give the
// same bits.
#pragma once

#include "ops/cuda/rows.cuh"
#include "ops/pointwise/quick.cuh"
#include "ops/resident/stream.cuh"
#include "ops/row_norm/forward.cuh"

namespace ebb::cuda {

template <int threads>
__device__ inline void team_barrier(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

// The number of threads that normalise a row, and the most packs of it that each of them holds.
// Together they limit the length of a row.
inline constexpr int row_threads = 256, row_packs = 4;
inline constexpr std::int64_t longest_row = 8 * row_packs * row_threads;
static_assert(longest_row == row_threads * kept_elements && row_threads <= resident_threads);

// Normalises one row, by all threads of the block. Sums have the order in which launch_rows adds
// them: if a warp could hold the row, each lane adds every 32nd pack.
template <class S, int packs_each>
__device__ inline void normalise_packs(const RowNormForward<S>& f, std::int64_t r, int columns,
                                       float* scratch) {
  using T = Compute<S>;
  constexpr int n = pack<S>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, packs = columns / n;
  const S* x = f.in + r * columns;
  // Weight and bias are read early if there is only one pack; with more they would take too many
  // registers.
  constexpr bool early = packs_each == 1;
  uint4 own[packs_each], w{}, b{};
#pragma unroll
  for (int s = 0; s < packs_each; ++s) {
    const int at = s * row_threads + thread;
    if (thread >= row_threads || at >= packs) continue;
    own[s] = reinterpret_cast<const uint4*>(x)[at];
    if (early && f.weight) w = reinterpret_cast<const uint4*>(f.weight)[at];
    if (early && f.bias) b = reinterpret_cast<const uint4*>(f.bias)[at];
  }
  const auto part_of = [&](int s, const auto& body) {
    T v[n], part = T(0);
    unpack<S>(own[s], v);
#pragma unroll
    for (int k = 0; k < n; ++k) part += body(v[k]);
    return part;
  };
  const auto total = [&](const auto& body) {
    double sum = 0.0;
    __syncthreads();  // what was in `scratch` has been read
    if (packs <= row_threads) {
      if (thread < packs) scratch[thread] = part_of(0, body);
      __syncthreads();
      for (int at = lane; at < packs; at += 32) sum += static_cast<double>(scratch[at]);
      return warp_join(sum, Plus{});
    }
#pragma unroll
    for (int s = 0; s < packs_each; ++s)
      if (thread < row_threads && s * row_threads + thread < packs)
        sum += static_cast<double>(part_of(s, body));
    sum = warp_join(sum, Plus{});
    double* parts = reinterpret_cast<double*>(scratch);
    if (lane == 0 && thread < row_threads) parts[thread / 32] = sum;
    __syncthreads();
    sum = parts[0];
    for (int i = 1; i < row_threads / 32; ++i) sum += parts[i];
    return sum;
  };
  const double count = static_cast<double>(columns);
  const T mean = f.centred ? static_cast<T>(total([](T v) { return v; }) / count) : T(0);
  const double square = total([mean](T v) { return (v - mean) * (v - mean); }) / count;
  const T rstd = static_cast<T>(1.0 / square_root(square + f.eps));
  if (thread == 0) {
    if (f.means) f.means[r] = mean;
    if (f.rstds) f.rstds[r] = rstd;
  }
#pragma unroll
  for (int s = 0; s < packs_each; ++s) {
    const int at = s * row_threads + thread;
    if (thread >= row_threads || at >= packs) continue;
    T v[n], scale[n], shift[n];
    if (!early && f.weight) w = reinterpret_cast<const uint4*>(f.weight)[at];
    if (!early && f.bias) b = reinterpret_cast<const uint4*>(f.bias)[at];
    unpack<S>(own[s], v);
    unpack<S>(w, scale);
    unpack<S>(b, shift);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      v[k] = (v[k] - mean) * rstd;
      if (f.weight) v[k] *= scale[k];
      if (f.bias) v[k] += shift[k];
    }
    store_pack(f.out + r * columns + at * n, v);
  }
}

template <class S>
__device__ inline void normalise_row(const RowNormForward<S>& f, std::int64_t r, int columns,
                                     float* scratch) {
  constexpr int block = 8 * row_threads;
  if (columns <= block)
    normalise_packs<S, 1>(f, r, columns, scratch);
  else
    normalise_packs<S, row_packs>(f, r, columns, scratch);
}

// Applies a function to a row and multiplies by another row, if there is one. This thread takes
// elements `first`, first + step, .... Several packs are read before the first is used.
template <class S, class Function>
__device__ inline void apply_to_row(const S* x, const S* second, S* y, int columns, bool aligned,
                                    int first, int step, const Function& function) {
  constexpr int n = pack<S>, at_once = 2;
  const int packs = columns / n;
  if (!aligned) {
    for (int i = first; i < columns; i += step) {
      const Compute<S> value = function(widen(x[i]));
      y[i] = narrow<S>(second ? value * widen(second[i]) : value);
    }
    return;
  }
#pragma unroll 1
  for (int base = first; base < packs; base += at_once * step) {
    uint4 raw[at_once], factors[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int i = base + j * step;
      if (i >= packs) continue;
      raw[j] = reinterpret_cast<const uint4*>(x)[i];
      if (second) factors[j] = reinterpret_cast<const uint4*>(second)[i];
    }
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int i = base + j * step;
      if (i >= packs) continue;
      Compute<S> values[n], others[n];
      unpack<S>(raw[j], values);
#pragma unroll
      for (int k = 0; k < n; ++k) values[k] = function(values[k]);
      if (second) {
        unpack<S>(factors[j], others);
#pragma unroll
        for (int k = 0; k < n; ++k) values[k] *= others[k];
      }
      store_pack(y + i * n, values);
    }
  }
}

// Applies a form other than a norm and writes to (count, stride).
template <class S>
__device__ inline void apply_forms(const resident::Rows& rows, int count, int columns, S* to,
                                   int stride, int first, int step) {
  using resident::Form;
  constexpr int n = pack<S>;
  const bool aligned = columns % n == 0 && rows.stride % n == 0 && rows.second_stride % n == 0 &&
                       (count == 1 || stride % n == 0) &&
                       reinterpret_cast<std::uintptr_t>(rows.x) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(rows.second) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  for (int r = 0; r < count; ++r) {
    const S* x = static_cast<const S*>(rows.x) + static_cast<std::int64_t>(r) * rows.stride;
    const S* second = rows.second ? static_cast<const S*>(rows.second) +
                                        static_cast<std::int64_t>(r) * rows.second_stride
                                  : nullptr;
    S* y = to + static_cast<std::int64_t>(r) * stride;
    const auto apply = [&](const auto& function) {
      apply_to_row(x, second, y, columns, aligned, first, step, function);
    };
    using T = Compute<S>;
    switch (rows.form) {
      case Form::gelu:
        apply([](T v) { return widen(narrow<S>(quick_gelu(v))); });
        break;
      case Form::gelu_tanh:
        apply([](T v) { return widen(narrow<S>(quick_gelu_tanh(v))); });
        break;
      case Form::silu:
        apply([](T v) { return widen(narrow<S>(silu(v))); });
        break;
      case Form::relu:
        apply([](T v) { return v < T(0) ? T(0) : v; });
        break;
      default:
        apply([](T v) { return v; });
    }
  }
}

// Fills `to` (columns) with the row that a product reads.
template <class S>
__device__ inline void read_row_of(const resident::Rows& rows, int columns, S* to, float* scratch) {
  using resident::Form;
  if (rows.form == Form::layer_norm || rows.form == Form::rms_norm) {
    const RowNormForward<S> forward{static_cast<const S*>(rows.x),
                                    static_cast<const S*>(rows.weight),
                                    static_cast<const S*>(rows.bias),
                                    to,
                                    nullptr,
                                    nullptr,
                                    rows.eps,
                                    rows.form == Form::layer_norm};
    normalise_row(forward, 0, columns, scratch);
    return;
  }
  apply_forms(rows, 1, columns, to, columns, static_cast<int>(threadIdx.x), resident_threads);
}

// Adds values across lanes whose numbers differ by `distance`, distance / 2, ..., `last`. If a lane
// has several values, it keeps those whose index begins with its own bits. The pairs that are added
// are those of a butterfly.
template <int count, int distance, int last>
__device__ inline void fold_lanes(float (&v)[count], int lane) {
  if constexpr (distance >= last) {
    if constexpr (count > 1) {
      const bool upper = (lane & distance) != 0;
      float half[count / 2];
#pragma unroll
      for (int i = 0; i < count / 2; ++i) {
        const float keep = upper ? v[i + count / 2] : v[i], send = upper ? v[i] : v[i + count / 2];
        half[i] = keep + __shfl_xor_sync(0xffffffffu, send, distance);
      }
      fold_lanes<count / 2, distance / 2, last>(half, lane);
#pragma unroll
      for (int i = 0; i < count / 2; ++i) v[i] = half[i];
    } else {
      v[0] += __shfl_xor_sync(0xffffffffu, v[0], distance);
      fold_lanes<1, distance / 2, last>(v, lane);
    }
  }
}

// The destination of one element of a result, and the values added to it, which are read before the
// element is known.
template <class S>
struct Result {
  S* to = nullptr;  // null: outside of the result
  float bias = 0.0f, other = 0.0f;
  bool has_bias = false, has_other = false;

  __device__ Result(const resident::Product& p, int column) {
    if (column >= p.columns) return;
    to = static_cast<S*>(p.out) + column;
    has_bias = p.bias != nullptr, has_other = p.other != nullptr;
    if (has_bias) bias = widen(static_cast<const S*>(p.bias)[column]);
    if (has_other) other = widen(static_cast<const S*>(p.other)[column]);
  }
  __device__ void store(float value) const {
    if (has_bias) value += bias;
    if (has_other) value += other;
    if (to) *to = narrow<S>(value);
  }
};

// Calls body(i, raw) for parts i of the stream, while the next part is being loaded into registers.
template <class S, class Body>
__device__ inline void each_part(Stream<S>& stream, int parts, const Body& body) {
  constexpr int packs = Units<S>::packs;
  uint4 next[packs];
  if (parts > 0) stream.take(next);
#pragma unroll 1
  for (int i = 0; i < parts; ++i) {
    uint4 raw[packs];
#pragma unroll
    for (int q = 0; q < packs; ++q) raw[q] = next[q];
    if (i + 1 < parts) stream.take(next);
    body(i, raw);
  }
}

// x is the row, in shared memory. Past its end the ring has zeros, and x must not be read.
template <class S>
__device__ void multiply_lines(const resident::Product& p, Stream<S>& stream, const S* x) {
  using U = Units<S>;
  constexpr int n = U::elements, packs = U::packs;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const typename Stream<S>::Share share = stream.share(p);
#pragma unroll 1
  for (int unit = share.unit; unit < share.units; unit += share.step) {
    const Result<S> result(p, lane == 0 ? unit : p.columns);
    float sums[packs] = {};  // of each chain
    each_part(stream, share.parts, [&](int part, const uint4(&raw)[packs]) {
#pragma unroll
      for (int q = 0; q < packs; ++q) {
        const int k = ((part * packs + q) * 32 + lane) * n;
        uint4 of_row = *reinterpret_cast<const uint4*>(x + (k < p.inner ? k : 0));
        if (k >= p.inner) of_row = {};
        float w[n], values[n];
        unpack<S>(raw[q], w);
        unpack<S>(of_row, values);
#pragma unroll
        for (int i = 0; i < n; ++i) sums[q] += values[i] * w[i];
      }
    });
    fold_lanes<packs, 16, 1>(sums, lane);
    constexpr int lanes_of_sum = 32 / packs;
    float total = __shfl_sync(0xffffffffu, sums[0], 0);
#pragma unroll
    for (int q = 1; q < packs; ++q) total += __shfl_sync(0xffffffffu, sums[0], q * lanes_of_sum);
    result.store(total);
  }
}

// The number of floats for a team's sums of one unit.
template <class S>
inline constexpr int column_sums = Units<S>::chains* Units<S>::unit_columns;

template <class S>
__device__ void multiply_columns(const resident::Product& p, Stream<S>& stream, const S* x,
                                 float* scratch) {
  using U = Units<S>;
  constexpr int n = U::elements, packs = U::packs, team_threads = 32 * U::team_warps;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int team = warp / U::team_warps, thread = static_cast<int>(threadIdx.x) % team_threads;
  // Two buffers: the sums of a unit are read while those of the next are written.
  float* parts = scratch + team * 2 * column_sums<S>;
  int other = column_sums<S>;
  const typename Stream<S>::Share share = stream.share(p);
#pragma unroll 1
  for (int unit = share.unit; unit < share.units; unit += share.step) {
    const Result<S> result(p,
                           thread < U::unit_columns ? unit * U::unit_columns + thread : p.columns);
    float sums[packs * n] = {};  // of chain q and column i: q · n + i
    each_part(stream, share.parts, [&](int part, const uint4(&raw)[packs]) {
      const int first = (share.first_part + part * share.part_step) * packs;
#pragma unroll
      for (int q = 0; q < packs; ++q) {
        const int k = (first + q) * U::rows_of_pack + lane / U::lanes_of_row;
        const float read = widen(x[k < p.inner ? k : 0]), value = k < p.inner ? read : 0.0f;
        float w[n];
        unpack<S>(raw[q], w);
#pragma unroll
        for (int i = 0; i < n; ++i) sums[q * n + i] += value * w[i];
      }
    });
    fold_lanes<packs * n, 16, U::lanes_of_row>(sums, lane);
    constexpr int kept = packs * n / U::rows_of_pack;
#pragma unroll
    for (int r = 0; r < kept; ++r) {
      const int index = lane / U::lanes_of_row * kept + r, q = index / n, i = index % n;
      parts[(warp % U::team_warps * packs + q) * U::unit_columns + lane % U::lanes_of_row * n + i] =
          sums[r];
    }
    team_barrier<team_threads>(1 + team);
    if (thread < U::unit_columns) {
      float total = parts[thread];
#pragma unroll
      for (int chain = 1; chain < U::chains; ++chain)
        total += parts[chain * U::unit_columns + thread];
      result.store(total);
    }
    parts += other, other = -other;
  }
}

}  // namespace ebb::cuda
