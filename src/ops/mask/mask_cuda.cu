// Masks change rarely, about every hundred steps, so one block chooses for a whole tensor. Counts
// are integers, so their order does not matter.
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/mask/mask.h"

namespace ebb {
namespace {

using namespace cuda;
using Count = unsigned long long;

constexpr int block_threads = 1024, bins = 2048;

template <class T>
__global__ void apply_kernel(const T* x, const std::uint8_t* mask, T* out, std::int64_t elements,
                             std::int64_t each) {
  for_items(elements, [&](std::int64_t k) {
    const std::int64_t i = k / each;
    out[k] = mask[i / 8] >> i % 8 & 1 ? x[k] : T{};
  });
}

// The sum of `value` over the block, and over the threads before this one.
struct Scan {
  Count before, all;
};
__device__ Scan scan(Count value) {
  __shared__ Count parts[block_threads];
  __shared__ Count total;
  __syncthreads();  // an earlier call's results have been read
  parts[threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    total = 0;
    for (int t = 0; t < block_threads; ++t) {
      const Count own = parts[t];
      parts[t] = total;
      total += own;
    }
  }
  __syncthreads();
  return {parts[threadIdx.x], total};
}

// The digit of the cut: bin `bin`, of whose keys `rest` are chosen.
struct Digit {
  int bin;
  Count rest;
};

// The data that the threads of a block share while they choose.
struct Shared {
  Count histogram[bins];
  Digit digit;
};

// As on the CPU (mask_cpu.cpp): finds the cut digit by digit, then sets each byte of the mask.
template <class Key, class Set>
__device__ void choose(Shared& shared, std::int64_t count, Count chosen, const Key& key,
                       const Set& set) {
  Count* histogram = shared.histogram;
  if (chosen == 0) return;
  const int widths[3] = {10, 11, 11};
  std::uint32_t cut = 0, known = 0;
  Count left = chosen;
  int shift = 32;
  for (int d = 0; d < 3; ++d) {
    shift -= widths[d];
    const std::uint32_t digit_mask = (1u << widths[d]) - 1;
    __syncthreads();
    for (int b = static_cast<int>(threadIdx.x); b < bins; b += block_threads) histogram[b] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < count; i += block_threads)
      if (const std::uint32_t k = key(i); (k & known) == cut)
        atomicAdd(&histogram[k >> shift & digit_mask], Count{1});
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = 0;
      Count rest = left;
      for (; bin < static_cast<int>(digit_mask) && histogram[bin] < rest; ++bin)
        rest -= histogram[bin];
      shared.digit = {bin, rest};
    }
    __syncthreads();
    cut |= static_cast<std::uint32_t>(shared.digit.bin) << shift;
    known |= digit_mask << shift;
    left = shared.digit.rest;
  }
  // A thread takes neighbouring bytes, so that of equal keys the first are chosen.
  const std::int64_t bytes = (count + 7) / 8, each = ceil_div(bytes, block_threads);
  const std::int64_t begin = threadIdx.x * each, end = begin + each < bytes ? begin + each : bytes;
  const auto last = [&](std::int64_t b) { return b * 8 + 8 < count ? b * 8 + 8 : count; };
  Count equal = 0;
  for (std::int64_t b = begin; b < end; ++b)
    for (std::int64_t i = b * 8; i < last(b); ++i) equal += key(i) == cut;
  Count seen = scan(equal).before;
  for (std::int64_t b = begin; b < end; ++b) {
    unsigned bits = 0;
    for (std::int64_t i = b * 8; i < last(b); ++i) {
      const std::uint32_t k = key(i);
      if (k < cut || (k == cut && seen++ < left)) bits |= 1u << (i - b * 8);
    }
    set(b, static_cast<std::uint8_t>(bits));
  }
  __syncthreads();
}

__device__ Count count_live(const std::uint8_t* mask, std::int64_t count) {
  Count live = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += block_threads)
    live += mask[i / 8] >> i % 8 & 1;
  return scan(live).all;
}

template <class T>
__device__ float value_of(const T* x, std::int64_t i) {
  return static_cast<float>(widen(x[i]));
}

template <class T, class G>
__global__ void __launch_bounds__(block_threads)
    choose_kernel(ChooseMaskAttributes a, const T* weights, const std::uint8_t* before,
                  const double* share_at, const G* gradients, std::uint8_t* mask,
                  std::int64_t count) {
  __shared__ Shared shared;
  const double share = *share_at;
  if (before != mask)
    for (std::int64_t b = threadIdx.x; b < (count + 7) / 8; b += block_threads) mask[b] = before[b];
  __syncthreads();
  if (!(share >= 0.0)) return;
  const auto live = [&](std::int64_t i) { return (mask[i / 8] >> i % 8 & 1) != 0; };
  const auto clear = [&](std::int64_t b, std::uint8_t bits) {
    mask[b] = static_cast<std::uint8_t>(mask[b] & ~bits);
  };
  if (a.kind != ChooseMaskAttributes::Kind::regrow) {
    const auto wanted = static_cast<Count>(share * static_cast<double>(count));
    const Count dead = static_cast<Count>(count) - count_live(mask, count);
    const bool by_magnitude = a.kind == ChooseMaskAttributes::Kind::magnitude;
    choose(
        shared, count, wanted > dead ? wanted : dead,
        [&](std::int64_t i) {
          return mask_key::shrinking(value_of(weights, i), by_magnitude, live(i));
        },
        clear);
    return;
  }
  Count broken = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += block_threads)
    broken += !mask_key::finite(value_of(gradients, i));
  if (scan(broken).all != 0) return;
  const auto dropped = static_cast<Count>(share * static_cast<double>(count_live(mask, count)));
  choose(
      shared, count, dropped,
      [&](std::int64_t i) { return mask_key::dropping(value_of(weights, i), live(i)); }, clear);
  choose(
      shared, count, dropped,
      [&](std::int64_t i) { return mask_key::growing(value_of(gradients, i), live(i)); },
      [&](std::int64_t b, std::uint8_t bits) {
        mask[b] = static_cast<std::uint8_t>(mask[b] | bits);
      });
}

// One thread per byte; `before` is in other memory.
template <class T>
__global__ void runs_kernel(bool by_magnitude, RunGeometry runs, const T* scores,
                            const std::uint8_t* before, const double* share_at, std::uint8_t* mask,
                            std::int64_t count) {
  const double share = *share_at;
  const std::int64_t kept = share >= 0.0 ? runs.of - dead_in_run(share, runs.of) : runs.of;
  const auto key = [&](std::int64_t i) {
    return mask_key::shrinking(value_of(scores, i), by_magnitude, before[i / 8] >> i % 8 & 1);
  };
  for_items((count + 7) / 8, [&](std::int64_t b) {
    unsigned bits = 0;
    for (std::int64_t i = b * 8; i < (b * 8 + 8 < count ? b * 8 + 8 : count); ++i) {
      const std::uint32_t own = key(i);
      if (own == 0) continue;
      const std::int64_t first = runs.first(i);
      std::int64_t above = 0;
      for (std::int64_t n = 0; n < runs.of; ++n) {
        const std::int64_t j = first + n * runs.stride;
        const std::uint32_t other = key(j);
        above += other > own || (other == own && j > i);
      }
      if (above < kept) bits |= 1u << (i - b * 8);
    }
    mask[b] = static_cast<std::uint8_t>(bits);
  });
}

template <class T, class G>
Kernel bind_choose(const KernelRequest& request, const ChooseMaskAttributes& a) {
  const std::int64_t count = request.in(0).shape().elements(), bytes = (count + 7) / 8;
  if (a.of != 0) {
    const RunGeometry runs = runs_of(request.in(0).shape(), a);
    const bool by_magnitude = a.kind == ChooseMaskAttributes::Kind::magnitude;
    return {[=](const KernelArgs& args) {
              auto* before = args.scratch<std::uint8_t>();
              check(cudaMemcpyAsync(before, args.inputs[1], static_cast<std::size_t>(bytes),
                                    cudaMemcpyDeviceToDevice, stream_of(args)),
                    "choose_mask");
              launch({args, "choose_mask", item_grid(bytes), dim3(item_threads)}, runs_kernel<T>,
                     by_magnitude, runs, args.in<T>(0), before, args.in<double>(2),
                     args.out<std::uint8_t>(), count);
            },
            Bytes{bytes}};
  }
  const bool grows = a.kind == ChooseMaskAttributes::Kind::regrow;
  return {[=](const KernelArgs& args) {
    if (count == 0) return;
    launch({args, "choose_mask", dim3(1), dim3(block_threads)}, choose_kernel<T, G>, a,
           args.in<T>(0), args.in<std::uint8_t>(1), args.in<double>(2),
           grows ? args.in<G>(3) : nullptr, args.out<std::uint8_t>(), count);
  }};
}

}  // namespace

Kernel bind_masked_cuda(const KernelRequest& request, const MaskedAttributes& a) {
  const std::int64_t elements = request.out().shape().elements(),
                     each = a.weights == 0 ? 1 : elements / a.weights;
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[=](const KernelArgs& args) {
      launch({args, "masked", item_grid(elements), dim3(item_threads)}, apply_kernel<T>,
             args.in<T>(0), args.in<std::uint8_t>(1), args.out<T>(), elements, each);
    }};
  });
}

Kernel bind_choose_mask_cuda(const KernelRequest& request, const ChooseMaskAttributes& a) {
  return dispatch_choice(request, a, [&](auto weight, auto gradient) {
    return bind_choose<typename decltype(weight)::type, typename decltype(gradient)::type>(request,
                                                                                           a);
  });
}

}  // namespace ebb
