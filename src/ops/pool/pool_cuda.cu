// Pooling kernels with one thread per cell of the output. The gradients gather from the windows
// that contain a cell, in the order in which the CPU adds them, so that every sum has one order.
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/image_axes.h"
#include "ops/pool/pool.h"

namespace ebb {
namespace {

using namespace cuda;

// Images as (planes, H, W, inner). With the channels first, channels are planes and `inner` is 1;
// with the channels last, `inner` is the number of channels.
struct Pooling {
  std::int64_t planes, inner;
  int image_h, image_w, result_h, result_w;
  int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
  bool count_pad;

  Pooling(const Shape& images, const Shape& results, const PoolAttributes& a)
      : Pooling(as_channels_first(images, a.layout), as_channels_first(results, a.layout), a,
                a.layout == ImageLayout::channels_last) {}
  Pooling(const Shape& x, const Shape& y, const PoolAttributes& a, bool channels_last)
      : planes(channels_last ? x[0] : x[0] * x[1]),
        inner(channels_last ? x[1] : 1),
        image_h(static_cast<int>(x[2])),
        image_w(static_cast<int>(x[3])),
        result_h(static_cast<int>(y[2])),
        result_w(static_cast<int>(y[3])),
        kernel_h(static_cast<int>(a.kernel.h)),
        kernel_w(static_cast<int>(a.kernel.w)),
        stride_h(static_cast<int>(a.stride.h)),
        stride_w(static_cast<int>(a.stride.w)),
        padding_h(static_cast<int>(a.padding.h)),
        padding_w(static_cast<int>(a.padding.w)),
        count_pad(a.count_pad) {}

  constexpr std::int64_t results() const { return planes * result_h * result_w * inner; }
  constexpr std::int64_t cells() const { return planes * image_h * image_w * inner; }

  // A cell of the image or the result by its number.
  struct Cell {
    std::int64_t plane, channel;
    int y, x;
  };
  __device__ Cell cell(std::int64_t item, int height, int width) const {
    const std::int64_t at = inner == 1 ? item : quotient(item, inner);
    const std::int64_t row = quotient(at, width), plane = quotient(row, height);
    return {plane, item - at * inner, static_cast<int>(row - plane * height),
            static_cast<int>(at - row * width)};
  }
  // The element at (y, x) of the plane and channel of `c`.
  __device__ std::int64_t image_at(const Cell& c, int y, int x) const {
    return ((c.plane * image_h + y) * image_w + x) * inner + c.channel;
  }
  __device__ std::int64_t result_at(const Cell& c, int p, int q) const {
    return ((c.plane * result_h + p) * result_w + q) * inner + c.channel;
  }

  // The part of the window at (p, q) that lies in the image, in the window's own numbers.
  struct Window {
    int top, left;  // of the window in the image
    int first_row, last_row, first_column, last_column;
  };
  __device__ Window window(int p, int q) const {
    const int top = p * stride_h - padding_h, left = q * stride_w - padding_w;
    return {top,
            left,
            ::max(0, -top),
            ::min(kernel_h, image_h - top),
            ::max(0, -left),
            ::min(kernel_w, image_w - left)};
  }
  // The divisor of a window's sum.
  __device__ int divisor(const Window& w) const {
    return count_pad ? kernel_h * kernel_w
                     : (w.last_row - w.first_row) * (w.last_column - w.first_column);
  }

  // Calls visit(p, q, i, j) for the windows that contain image cell (y, x) as their cell (i, j).
  template <class Visit>
  __device__ void for_windows(int y, int x, const Visit& visit) const {
    for (int i = kernel_h - 1; i >= 0; --i) {
      const int down = y + padding_h - i;
      if (down < 0 || down % stride_h != 0 || down / stride_h >= result_h) continue;
      for (int j = kernel_w - 1; j >= 0; --j) {
        const int across = x + padding_w - j;
        if (across < 0 || across % stride_w != 0 || across / stride_w >= result_w) continue;
        visit(down / stride_h, across / stride_w, i, j);
      }
    }
  }
};

template <class T>
__global__ void max_kernel(Pooling g, const T* x, T* y, std::uint8_t* offset) {
  using C = Compute<T>;
  for_items(g.results(), [&](std::int64_t item) {
    const Pooling::Cell at = g.cell(item, g.result_h, g.result_w);
    const Pooling::Window w = g.window(at.y, at.x);
    C best = -infinity<C>();
    int where = w.first_row * g.kernel_w + w.first_column;
    for (int i = w.first_row; i < w.last_row; ++i)
      for (int j = w.first_column; j < w.last_column; ++j) {
        const C value = widen(x[g.image_at(at, w.top + i, w.left + j)]);
        const bool wins = !(value <= best) && !(best != best && value == value);
        if (wins) best = value, where = i * g.kernel_w + j;
      }
    y[item] = narrow<T>(best);
    offset[item] = static_cast<std::uint8_t>(where);
  });
}

template <class T>
__global__ void max_grad_kernel(Pooling g, const std::uint8_t* offset, const T* grad, T* x) {
  using C = Compute<T>;
  for_items(g.cells(), [&](std::int64_t item) {
    const Pooling::Cell at = g.cell(item, g.image_h, g.image_w);
    C total = C(0);
    g.for_windows(at.y, at.x, [&](int p, int q, int i, int j) {
      const std::int64_t result = g.result_at(at, p, q);
      if (offset[result] == i * g.kernel_w + j) total += widen(grad[result]);
    });
    x[item] = narrow<T>(total);
  });
}

// Elements are only moved; T is any type of their size.
template <class T>
__global__ void gather_kernel(Pooling g, const std::uint8_t* offset, const T* x, T* y) {
  for_items(g.results(), [&](std::int64_t item) {
    const Pooling::Cell at = g.cell(item, g.result_h, g.result_w);
    const Pooling::Window w = g.window(at.y, at.x);
    const int cell = offset[item];
    y[item] = x[g.image_at(at, w.top + cell / g.kernel_w, w.left + cell % g.kernel_w)];
  });
}

template <class T>
__global__ void avg_kernel(Pooling g, const T* x, T* y) {
  using C = Compute<T>;
  for_items(g.results(), [&](std::int64_t item) {
    const Pooling::Cell at = g.cell(item, g.result_h, g.result_w);
    const Pooling::Window w = g.window(at.y, at.x);
    C total = C(0);
    for (int i = w.first_row; i < w.last_row; ++i)
      for (int j = w.first_column; j < w.last_column; ++j)
        total += widen(x[g.image_at(at, w.top + i, w.left + j)]);
    y[item] = narrow<T>(total / static_cast<C>(g.divisor(w)));
  });
}

template <class T>
__global__ void avg_grad_kernel(Pooling g, const T* grad, T* x) {
  using C = Compute<T>;
  for_items(g.cells(), [&](std::int64_t item) {
    const Pooling::Cell at = g.cell(item, g.image_h, g.image_w);
    C total = C(0);
    g.for_windows(at.y, at.x, [&](int p, int q, int, int) {
      const std::int64_t result = g.result_at(at, p, q);
      total += widen(grad[result]) / static_cast<C>(g.divisor(g.window(p, q)));
    });
    x[item] = narrow<T>(total);
  });
}

}  // namespace

Kernel bind_max_pool2d_cuda(const KernelRequest& request, const PoolAttributes& a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{
        [g = Pooling(request.in(0).shape(), request.out().shape(), a)](const KernelArgs& args) {
          launch({args, "max_pool2d", item_grid(g.results()), dim3(item_threads)}, max_kernel<T>, g,
                 args.in<T>(0), args.out<T>(), args.out<std::uint8_t>(1));
        }};
  });
}

Kernel bind_max_pool2d_grad_cuda(const KernelRequest& request, const PoolAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{
        [g = Pooling(request.out().shape(), request.in(1).shape(), a)](const KernelArgs& args) {
          launch({args, "max_pool2d_grad", item_grid(g.cells()), dim3(item_threads)},
                 max_grad_kernel<T>, g, args.in<std::uint8_t>(0), args.in<T>(1), args.out<T>());
        }};
  });
}

Kernel bind_max_pool2d_gather_cuda(const KernelRequest& request, const PoolAttributes& a) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{
        [g = Pooling(request.in(1).shape(), request.out().shape(), a)](const KernelArgs& args) {
          launch({args, "max_pool2d_gather", item_grid(g.results()), dim3(item_threads)},
                 gather_kernel<T>, g, args.in<std::uint8_t>(0), args.in<T>(1), args.out<T>());
        }};
  });
}

Kernel bind_avg_pool2d_cuda(const KernelRequest& request, const PoolAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{
        [g = Pooling(request.in(0).shape(), request.out().shape(), a)](const KernelArgs& args) {
          launch({args, "avg_pool2d", item_grid(g.results()), dim3(item_threads)}, avg_kernel<T>, g,
                 args.in<T>(0), args.out<T>());
        }};
  });
}

Kernel bind_avg_pool2d_grad_cuda(const KernelRequest& request, const PoolAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{
        [g = Pooling(request.out().shape(), request.in(0).shape(), a)](const KernelArgs& args) {
          launch({args, "avg_pool2d_grad", item_grid(g.cells()), dim3(item_threads)},
                 avg_grad_kernel<T>, g, args.in<T>(0), args.out<T>());
        }};
  });
}

}  // namespace ebb
