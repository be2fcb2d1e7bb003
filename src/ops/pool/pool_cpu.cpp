// Pooling kernels for images with the channels first. One thread owns a plane (an image's channel)
// of the output and fills it line by line, a band of neighbouring cells at a time: for each cell of
// the window, the band takes the values under that cell. Every sum has one order, and half types
// are rounded once.
#include <algorithm>
#include <limits>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/pool/geometry.h"

namespace ebb {
namespace {

constexpr std::int64_t band = 256;  // cells of a line handled together

struct Pooling : PoolGeometry {
  using PoolGeometry::PoolGeometry;

  // Column j of the window at result column q lies at image column left(j) + q · stride.
  std::int64_t left(std::int64_t j) const { return j - a.padding.w; }
  // The first result column whose cell j is at image column x or right of it.
  std::int64_t reach(std::int64_t j, std::int64_t x) const {
    const std::int64_t away = x - left(j);
    return away <= 0 ? 0 : std::min((away + a.stride.w - 1) / a.stride.w, result.w);
  }
  template <class Body>
  void for_planes(const Body& body) const {
    const std::int64_t cells = std::max(image_cells(), result_cells());
    parallel_for(batch * channels, std::max<std::int64_t>(1, 32768 / cells),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t plane = begin; plane < end; ++plane) body(plane);
                 });
  }

  // Calls visit(cell, from, q, count) for the cells of the windows of result columns [begin, end)
  // of row p: `count` columns from q on read the plane from `from` on, one stride apart.
  template <class Visit>
  void for_cells(std::int64_t p, std::int64_t begin, std::int64_t end, const Visit& visit) const {
    for (std::int64_t i = first_row(p); i < last_row(p); ++i)
      for (std::int64_t j = 0; j < a.kernel.w; ++j) {
        const std::int64_t q = std::max(begin, reach(j, 0)),
                           last = std::min(end, reach(j, image.w));
        if (q < last)
          visit(i * a.kernel.w + j, (top(p) + i) * image.w + left(j) + q * a.stride.w, q, last - q);
      }
  }

  // Calls visit(cell, p, q, x, count) for the windows over image columns [begin, end) of row y:
  // result columns from q of row p on hold the image cells from x on, one stride apart, as `cell`.
  template <class Visit>
  void for_windows(std::int64_t y, std::int64_t begin, std::int64_t end, const Visit& visit) const {
    for (std::int64_t i = a.kernel.h - 1; i >= 0; --i) {  // result rows in growing order
      const std::int64_t down = y + a.padding.h - i;
      if (down < 0 || down % a.stride.h != 0 || down / a.stride.h >= result.h) continue;
      for (std::int64_t j = a.kernel.w - 1; j >= 0; --j) {
        const std::int64_t q = reach(j, begin), last = reach(j, end);
        if (q < last)
          visit(i * a.kernel.w + j, down / a.stride.h, q, left(j) + q * a.stride.w, last - q);
      }
    }
  }
};

template <class T>
void max_plane(const Pooling& g, const T* x, T* y, std::uint8_t* offset) {
  using C = Compute<T>;
  C best[band];
  std::uint8_t where[band];
  for (std::int64_t p = 0; p < g.result.h; ++p)
    for (std::int64_t begin = 0; begin < g.result.w; begin += band) {
      const std::int64_t width = std::min(band, g.result.w - begin);
      for (std::int64_t k = 0; k < width; ++k) {
        best[k] = -std::numeric_limits<C>::infinity();
        where[k] =
            static_cast<std::uint8_t>(g.first_row(p) * g.a.kernel.w + g.first_column(begin + k));
      }
      g.for_cells(p, begin, begin + width,
                  [&](std::int64_t cell, std::int64_t from, std::int64_t q, std::int64_t count) {
                    const T* values = x + from;
                    C* top = best + (q - begin);
                    std::uint8_t* at = where + (q - begin);
                    for (std::int64_t k = 0; k < count; ++k) {
                      const C value = static_cast<C>(values[k * g.a.stride.w]);
                      const bool wins = !(value <= top[k]) && !(top[k] != top[k] && value == value);
                      top[k] = wins ? value : top[k];
                      at[k] = wins ? static_cast<std::uint8_t>(cell) : at[k];
                    }
                  });
      for (std::int64_t k = 0; k < width; ++k) {
        y[p * g.result.w + begin + k] = static_cast<T>(best[k]);
        offset[p * g.result.w + begin + k] = where[k];
      }
    }
}

template <class T>
void max_grad_plane(const Pooling& g, const std::uint8_t* offset, const T* grad, T* x) {
  using C = Compute<T>;
  C total[band];
  for (std::int64_t y = 0; y < g.image.h; ++y)
    for (std::int64_t begin = 0; begin < g.image.w; begin += band) {
      const std::int64_t width = std::min(band, g.image.w - begin);
      std::fill_n(total, width, C(0));
      g.for_windows(y, begin, begin + width,
                    [&](std::int64_t cell, std::int64_t p, std::int64_t q, std::int64_t at,
                        std::int64_t count) {
                      const std::uint8_t* where = offset + p * g.result.w + q;
                      const T* values = grad + p * g.result.w + q;
                      C* to = total + (at - begin);
                      for (std::int64_t k = 0; k < count; ++k) {
                        const C value = static_cast<C>(values[k]);
                        to[k * g.a.stride.w] +=
                            where[k] == static_cast<std::uint8_t>(cell) ? value : C(0);
                      }
                    });
      for (std::int64_t k = 0; k < width; ++k)
        x[y * g.image.w + begin + k] = static_cast<T>(total[k]);
    }
}

template <class T>
void avg_plane(const Pooling& g, const T* x, T* y) {
  using C = Compute<T>;
  C total[band];
  for (std::int64_t p = 0; p < g.result.h; ++p)
    for (std::int64_t begin = 0; begin < g.result.w; begin += band) {
      const std::int64_t width = std::min(band, g.result.w - begin);
      std::fill_n(total, width, C(0));
      g.for_cells(p, begin, begin + width,
                  [&](std::int64_t, std::int64_t from, std::int64_t q, std::int64_t count) {
                    const T* values = x + from;
                    C* to = total + (q - begin);
                    for (std::int64_t k = 0; k < count; ++k)
                      to[k] += static_cast<C>(values[k * g.a.stride.w]);
                  });
      for (std::int64_t k = 0; k < width; ++k)
        y[p * g.result.w + begin + k] =
            static_cast<T>(total[k] / static_cast<C>(g.divisor(p, begin + k)));
    }
}

template <class T>
void avg_grad_plane(const Pooling& g, const T* grad, T* x) {
  using C = Compute<T>;
  C total[band];
  for (std::int64_t y = 0; y < g.image.h; ++y)
    for (std::int64_t begin = 0; begin < g.image.w; begin += band) {
      const std::int64_t width = std::min(band, g.image.w - begin);
      std::fill_n(total, width, C(0));
      g.for_windows(
          y, begin, begin + width,
          [&](std::int64_t, std::int64_t p, std::int64_t q, std::int64_t at, std::int64_t count) {
            const T* values = grad + p * g.result.w + q;
            C* to = total + (at - begin);
            if (g.a.count_pad) {
              const C share = C(1) / static_cast<C>(g.divisor(p, q));
              for (std::int64_t k = 0; k < count; ++k)
                to[k * g.a.stride.w] += static_cast<C>(values[k]) * share;
            } else {
              for (std::int64_t k = 0; k < count; ++k)
                to[k * g.a.stride.w] +=
                    static_cast<C>(values[k]) / static_cast<C>(g.divisor(p, q + k));
            }
          });
      for (std::int64_t k = 0; k < width; ++k)
        x[y * g.image.w + begin + k] = static_cast<T>(total[k]);
    }
}

// Elements are only moved; T is any type of their size.
template <class T>
void gather_plane(const Pooling& g, const std::uint8_t* offset, const T* x, T* y) {
  for (std::int64_t p = 0; p < g.result.h; ++p)
    for (std::int64_t q = 0; q < g.result.w; ++q) {
      const std::int64_t at = p * g.result.w + q, cell = offset[at];
      y[at] = x[(g.top(p) + cell / g.a.kernel.w) * g.image.w + g.left(cell % g.a.kernel.w) +
                q * g.a.stride.w];
    }
}

}  // namespace

Kernel bind_max_pool2d(const KernelRequest& request, const PoolAttributes& a) {
  const Pooling g(request.in(0).shape(), request.out().shape(), a);
  if (g.channels_last()) return bind_max_pool2d_channels_last(request, g);
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      g.for_planes([&](std::int64_t plane) {
        max_plane(g, args.in<T>(0) + plane * g.image_cells(),
                  args.out<T>() + plane * g.result_cells(),
                  args.out<std::uint8_t>(1) + plane * g.result_cells());
      });
    }};
  });
}

Kernel bind_max_pool2d_grad(const KernelRequest& request, const PoolAttributes& a) {
  const Pooling g(request.out().shape(), request.in(1).shape(), a);
  if (g.channels_last()) return bind_max_pool2d_grad_channels_last(request, g);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      g.for_planes([&](std::int64_t plane) {
        max_grad_plane(g, args.in<std::uint8_t>(0) + plane * g.result_cells(),
                       args.in<T>(1) + plane * g.result_cells(),
                       args.out<T>() + plane * g.image_cells());
      });
    }};
  });
}

Kernel bind_max_pool2d_gather(const KernelRequest& request, const PoolAttributes& a) {
  const Pooling g(request.in(1).shape(), request.out().shape(), a);
  if (g.channels_last()) return bind_max_pool2d_gather_channels_last(request, g);
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      g.for_planes([&](std::int64_t plane) {
        gather_plane(g, args.in<std::uint8_t>(0) + plane * g.result_cells(),
                     args.in<T>(1) + plane * g.image_cells(),
                     args.out<T>() + plane * g.result_cells());
      });
    }};
  });
}

Kernel bind_avg_pool2d(const KernelRequest& request, const PoolAttributes& a) {
  const Pooling g(request.in(0).shape(), request.out().shape(), a);
  if (g.channels_last()) return bind_avg_pool2d_channels_last(request, g);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      g.for_planes([&](std::int64_t plane) {
        avg_plane(g, args.in<T>(0) + plane * g.image_cells(),
                  args.out<T>() + plane * g.result_cells());
      });
    }};
  });
}

Kernel bind_avg_pool2d_grad(const KernelRequest& request, const PoolAttributes& a) {
  const Pooling g(request.out().shape(), request.in(0).shape(), a);
  if (g.channels_last()) return bind_avg_pool2d_grad_channels_last(request, g);
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      g.for_planes([&](std::int64_t plane) {
        avg_grad_plane(g, args.in<T>(0) + plane * g.result_cells(),
                       args.out<T>() + plane * g.image_cells());
      });
    }};
  });
}

}  // namespace ebb
