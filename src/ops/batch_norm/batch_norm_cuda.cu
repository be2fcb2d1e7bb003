// Batch normalisation of x as (N, C, S), where S is the number of elements of a channel in one
// sample, and more than one (batch_norm_columns_cuda.cu has the other case). Blocks compute the
// moments or sums of slices of a channel, a warp combines the slices of each channel in order and
// computes its coefficients, and a third kernel applies them to every element. y may be x, and dx
// may be x or g.
#include <algorithm>

#include "ebb/storage.h"
#include "ops/batch_norm/channels.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb {
namespace {

using namespace cuda;

constexpr int threads = 256;
constexpr std::int64_t wanted_blocks = 528;  // four for each of an H200's multiprocessors
constexpr std::int64_t slice_elements = 4096;
constexpr int chunk = 16;  // elements a thread takes together

struct Extent : ChannelExtent {
  std::int64_t slices;

  explicit Extent(const ChannelExtent& extent) : ChannelExtent(extent) {
    slices = std::clamp<std::int64_t>(wanted_blocks / channels, 1,
                                      std::max<std::int64_t>(1, samples * run / slice_elements));
  }
  constexpr double per_channel() const { return static_cast<double>(samples * run); }
  constexpr std::int64_t elements() const { return samples * channels * run; }

  // Calls body(offset) for this thread's slots of `width` neighbouring elements in the block's
  // slice of its channel. `together` slots are passed at once, as an array of offsets, with -1 for
  // missing slots.
  template <int width, int together, class Body>
  __device__ void for_slots(const Body& body) const {
    const std::int64_t per_run = run / width, all = samples * per_run;
    const std::int64_t channel = blockIdx.x, slice = blockIdx.y;
    const std::int64_t end = all * (slice + 1) / slices;
    for (std::int64_t i = all * slice / slices + threadIdx.x; i < end; i += threads * together) {
      std::int64_t offsets[together];
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const std::int64_t at = i + k * threads, n = quotient(at, per_run);
        offsets[k] = at < end ? (n * channels + channel) * run + (at - n * per_run) * width : -1;
      }
      body(offsets);
    }
  }
};

// Each chunk is summed relative to its first element; since that is one of the samples, the
// additional rounding error is small compared with the variance.
template <class S, int width>
__global__ void __launch_bounds__(threads) moments_kernel(Extent e, const S* x, Moments* partial) {
  using T = Compute<S>;
  constexpr int together = chunk / width;
  Moments own;
  e.for_slots<width, together>([&](const std::int64_t(&offsets)[together]) {
    T values[together][width];
#pragma unroll
    for (int k = 0; k < together; ++k)
      if (offsets[k] >= 0) load<S, width>(x + offsets[k], values[k]);
    const T first = values[0][0];
    T sum = T(0), squares = T(0);
    int count = 0;
#pragma unroll
    for (int k = 0; k < together; ++k)
      if (offsets[k] >= 0) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          const T away = values[k][j] - first;
          sum += away;
          squares += away * away;
        }
        count += width;
      }
    const double n = count, away = static_cast<double>(sum) / n;
    own = Moments::Join{}(own, {n, static_cast<double>(first) + away,
                                static_cast<double>(squares) - away * away * n});
  });
  own = Group<threads>{static_cast<int>(threadIdx.x)}.join(own, Moments::Join{});
  if (threadIdx.x == 0) partial[blockIdx.x * e.slices + blockIdx.y] = own;
}

template <class S, int width, bool relu>
__global__ void __launch_bounds__(threads)
    sums_kernel(Extent e, const S* x, const S* g, Forwards<S> forwards, Sums* partial) {
  using T = Compute<S>;
  constexpr int together = chunk / width;
  const T mean = forwards.means[blockIdx.x];
  T scale = T(0), shift = T(0);  // of y
  if constexpr (relu) {
    scale = forwards.scale(blockIdx.x);
    shift = forwards.shift(blockIdx.x);
  }
  Sums own;
  e.for_slots<width, together>([&](const std::int64_t(&offsets)[together]) {
    T values[together][width], up[together][width];
#pragma unroll
    for (int k = 0; k < together; ++k)
      if (offsets[k] >= 0) {
        load<S, width>(x + offsets[k], values[k]);
        load<S, width>(g + offsets[k], up[k]);
      }
    T sum = T(0), centred = T(0);
#pragma unroll
    for (int k = 0; k < together; ++k)
      if (offsets[k] >= 0) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          T& v = up[k][j];
          if constexpr (relu) v = passed<S>(v, normalised(values[k][j], mean, scale, shift));
          sum += v;
          centred = fused_multiply_add(v, values[k][j] - mean, centred);
        }
      }
    own = Sums::Join{}(own, {static_cast<double>(sum), static_cast<double>(centred)});
  });
  own = Group<threads>{static_cast<int>(threadIdx.x)}.join(own, Sums::Join{});
  if (threadIdx.x == 0) partial[blockIdx.x * e.slices + blockIdx.y] = own;
}

// A warp for each channel.
template <class Part>
__device__ Part join_slices(const Extent& e, const Part* partial, std::int64_t channel) {
  Part all;
  for (std::int64_t s = threadIdx.x; s < e.slices; s += 32)
    all = typename Part::Join{}(all, partial[channel * e.slices + s]);
  return warp_join(all, typename Part::Join{});
}

template <class S, class Channels>
__global__ void finish_kernel(Extent e, const typename Channels::Part* partial, Channels channels,
                              Coefficients<Compute<S>>* coefficients) {
  const auto all = join_slices(e, partial, blockIdx.x);
  if (threadIdx.x == 0) coefficients[blockIdx.x] = channels.finish(blockIdx.x, all);
}

// y from x and the added tensor, or dx from x and g; with relu, recomputes y for the mask.
template <class S, int width, bool relu>
__global__ void apply_kernel(Extent e, const S* x, const S* added, const S* g, S* out,
                             const Coefficients<Compute<S>>* coefficients, Forwards<S> forwards) {
  using T = Compute<S>;
  const std::int64_t per_run = e.run / width;
  for_items(e.elements() / width, [&](std::int64_t item) {
    const std::int64_t row = quotient(item, per_run);
    const std::int64_t channel = row - quotient(row, e.channels) * e.channels;
    const Coefficients<T> c = coefficients[channel];
    const T shift = relu && g ? forwards.shift(channel) : T(0);
    T v[width], up[width];
    load<S, width>(x + item * width, v);
    if (g || added) load<S, width>((g ? g : added) + item * width, up);
#pragma unroll
    for (int k = 0; k < width; ++k)
      v[k] = g       ? backward<S, relu>(c, v[k], up[k], shift)
             : added ? forward<S, relu>(c, v[k], up[k])
                     : forward<S, relu>(c, v[k]);
    store<S, width>(out + item * width, v);
  });
}

template <class S, int width>
void run_forward(const KernelArgs& args, const Extent& e, const BatchNormAttributes& a) {
  using T = Compute<S>;
  auto* coefficients = args.scratch<Coefficients<T>>();
  auto* partial = args.scratch<Moments>(Workspace<S, Moments>(e.channels, e.slices).coefficients);
  const dim3 grid(static_cast<unsigned>(e.channels), static_cast<unsigned>(e.slices));
  launch({args, "batch_norm", grid, dim3(threads)}, moments_kernel<S, width>, e, args.in<S>(0),
         partial);
  launch({args, "batch_norm", dim3(grid.x), dim3(32)}, finish_kernel<S, ForwardChannels<S>>, e,
         partial, ForwardChannels<S>(args, a), coefficients);
  with_flag(a.relu, [&](auto r) {
    constexpr bool relu = decltype(r)::value;
    launch({args, "batch_norm", item_grid(e.elements() / width), dim3(item_threads)},
           apply_kernel<S, width, relu>, e, args.in<S>(0),
           a.added ? args.in<S>(a.added_input()) : nullptr, nullptr, args.out<S>(), coefficients,
           Forwards<S>());
  });
}

template <class S, int width>
void run_backward(const KernelArgs& args, const Extent& e, const BatchNormGradAttributes& a,
                  bool wide_bias) {
  using T = Compute<S>;
  auto* coefficients = args.scratch<Coefficients<T>>();
  auto* partial = args.scratch<Sums>(Workspace<S, Sums>(e.channels, e.slices).coefficients);
  const dim3 grid(static_cast<unsigned>(e.channels), static_cast<unsigned>(e.slices));
  const Forwards<S> forwards(args, a, wide_bias);
  with_flag(a.relu, [&](auto r) {
    constexpr bool relu = decltype(r)::value;
    launch({args, "batch_norm_grad", grid, dim3(threads)}, sums_kernel<S, width, relu>, e,
           args.in<S>(0), args.in<S>(1), forwards, partial);
    launch({args, "batch_norm_grad", dim3(grid.x), dim3(32)}, finish_kernel<S, BackwardChannels<S>>,
           e, partial, BackwardChannels<S>(args, a, e.per_channel()), coefficients);
    launch({args, "batch_norm_grad", item_grid(e.elements() / width), dim3(item_threads)},
           apply_kernel<S, width, relu>, e, args.in<S>(0), nullptr, args.in<S>(1), args.out<S>(),
           coefficients, forwards);
  });
}

}  // namespace

Kernel bind_batch_norm_cuda(const KernelRequest& request, const BatchNormAttributes& a) {
  const ChannelExtent extent(request.out().shape(), a.layout);
  if (extent.run == 1) return bind_batch_norm_columns_cuda(request, a);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Extent e(extent);
    return Kernel{
        [e, a](const KernelArgs& args) {
          const void* added = a.added ? args.inputs.back() : nullptr;
          if (e.run % pack<S> == 0 && aligned_for_packs(args.inputs[0], added, args.outputs[0]))
            run_forward<S, pack<S>>(args, e, a);
          else
            run_forward<S, 1>(args, e, a);
        },
        Workspace<S, Moments>(e.channels, e.slices).all};
  });
}

Kernel bind_batch_norm_grad_cuda(const KernelRequest& request, const BatchNormGradAttributes& a) {
  const ChannelExtent extent(request.out().shape(), a.layout);
  if (extent.run == 1) return bind_batch_norm_grad_columns_cuda(request, a);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Extent e(extent);
    return Kernel{[e, a, wide = has_wide_bias(request, a)](const KernelArgs& args) {
                    if (e.run % pack<S> == 0 &&
                        aligned_for_packs(args.inputs[0], args.inputs[1], args.outputs[0]))
                      run_backward<S, pack<S>>(args, e, a, wide);
                    else
                      run_backward<S, 1>(args, e, a, wide);
                  },
                  Workspace<S, Sums>(e.channels, e.slices).all};
  });
}

}  // namespace ebb
