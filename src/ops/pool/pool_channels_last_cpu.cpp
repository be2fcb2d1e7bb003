// Pooling kernels for images with the channels last. A thread owns lines of the output, and all
// channels of a cell are processed together, a band at a time. Sums have the same order as in the
// kernels for channels first, so both layouts give the same bits.
#include <limits>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/pool/geometry.h"

namespace ebb {
namespace {

constexpr std::int64_t band = 256;  // channels handled together

// Calls body(n, y) for every line of `lines` lines an image, of `cells` cells each.
template <class Body>
void for_lines(const PoolGeometry& g, std::int64_t lines, std::int64_t cells, const Body& body) {
  const std::int64_t work = std::max<std::int64_t>(1, cells * g.channels);
  parallel_for(g.batch * lines, std::max<std::int64_t>(1, 32768 / work),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t line = begin; line < end; ++line)
                   body(line / lines, line % lines);
               });
}

// Calls body(first, count) for bands of channels.
template <class Body>
void for_bands(const PoolGeometry& g, const Body& body) {
  for (std::int64_t c = 0; c < g.channels; c += band) body(c, std::min(band, g.channels - c));
}

// The place where the channels of a cell begin.
std::int64_t image_at(const PoolGeometry& g, std::int64_t n, std::int64_t y, std::int64_t x) {
  return ((n * g.image.h + y) * g.image.w + x) * g.channels;
}
std::int64_t result_at(const PoolGeometry& g, std::int64_t n, std::int64_t p, std::int64_t q) {
  return ((n * g.result.h + p) * g.result.w + q) * g.channels;
}

// Calls visit(cell, y, x) for the cells of the window at (p, q) that lie in the image.
template <class Visit>
void for_cells(const PoolGeometry& g, std::int64_t p, std::int64_t q, const Visit& visit) {
  for (std::int64_t i = g.first_row(p); i < g.last_row(p); ++i)
    for (std::int64_t j = g.first_column(q); j < g.last_column(q); ++j)
      visit(i * g.a.kernel.w + j, g.top(p) + i, q * g.a.stride.w - g.a.padding.w + j);
}

// Calls visit(cell, p, q) for the windows that contain image cell (y, x); `cell` is its number in
// the window.
template <class Visit>
void for_windows(const PoolGeometry& g, std::int64_t y, std::int64_t x, const Visit& visit) {
  for (std::int64_t i = g.a.kernel.h - 1; i >= 0; --i) {  // result rows in growing order
    const std::int64_t down = y + g.a.padding.h - i;
    if (down < 0 || down % g.a.stride.h != 0 || down / g.a.stride.h >= g.result.h) continue;
    for (std::int64_t j = g.a.kernel.w - 1; j >= 0; --j) {
      const std::int64_t across = x + g.a.padding.w - j;
      if (across < 0 || across % g.a.stride.w != 0 || across / g.a.stride.w >= g.result.w) continue;
      visit(i * g.a.kernel.w + j, down / g.a.stride.h, across / g.a.stride.w);
    }
  }
}

template <class T>
void max_line(const PoolGeometry& g, std::int64_t n, std::int64_t p, const T* x, T* y,
              std::uint8_t* offset) {
  using C = Compute<T>;
  C best[band];
  std::uint8_t where[band];
  for (std::int64_t q = 0; q < g.result.w; ++q)
    for_bands(g, [&](std::int64_t first, std::int64_t count) {
      std::fill_n(best, count, -std::numeric_limits<C>::infinity());
      std::fill_n(where, count,
                  static_cast<std::uint8_t>(g.first_row(p) * g.a.kernel.w + g.first_column(q)));
      for_cells(g, p, q, [&](std::int64_t cell, std::int64_t row, std::int64_t column) {
        const T* values = x + image_at(g, n, row, column) + first;
        for (std::int64_t k = 0; k < count; ++k) {
          const C value = static_cast<C>(values[k]);
          const bool wins = !(value <= best[k]) && !(best[k] != best[k] && value == value);
          best[k] = wins ? value : best[k];
          where[k] = wins ? static_cast<std::uint8_t>(cell) : where[k];
        }
      });
      const std::int64_t at = result_at(g, n, p, q) + first;
      for (std::int64_t k = 0; k < count; ++k) {
        y[at + k] = static_cast<T>(best[k]);
        offset[at + k] = where[k];
      }
    });
}

template <class T>
void max_grad_line(const PoolGeometry& g, std::int64_t n, std::int64_t y,
                   const std::uint8_t* offset, const T* grad, T* x) {
  using C = Compute<T>;
  C total[band];
  for (std::int64_t column = 0; column < g.image.w; ++column)
    for_bands(g, [&](std::int64_t first, std::int64_t count) {
      std::fill_n(total, count, C(0));
      for_windows(g, y, column, [&](std::int64_t cell, std::int64_t p, std::int64_t q) {
        const std::int64_t at = result_at(g, n, p, q) + first;
        for (std::int64_t k = 0; k < count; ++k)
          total[k] += offset[at + k] == static_cast<std::uint8_t>(cell)
                          ? static_cast<C>(grad[at + k])
                          : C(0);
      });
      T* to = x + image_at(g, n, y, column) + first;
      for (std::int64_t k = 0; k < count; ++k) to[k] = static_cast<T>(total[k]);
    });
}

template <class T>
void avg_line(const PoolGeometry& g, std::int64_t n, std::int64_t p, const T* x, T* y) {
  using C = Compute<T>;
  C total[band];
  for (std::int64_t q = 0; q < g.result.w; ++q)
    for_bands(g, [&](std::int64_t first, std::int64_t count) {
      std::fill_n(total, count, C(0));
      for_cells(g, p, q, [&](std::int64_t, std::int64_t row, std::int64_t column) {
        const T* values = x + image_at(g, n, row, column) + first;
        for (std::int64_t k = 0; k < count; ++k) total[k] += static_cast<C>(values[k]);
      });
      const C divisor = static_cast<C>(g.divisor(p, q));
      T* to = y + result_at(g, n, p, q) + first;
      for (std::int64_t k = 0; k < count; ++k) to[k] = static_cast<T>(total[k] / divisor);
    });
}

template <class T>
void avg_grad_line(const PoolGeometry& g, std::int64_t n, std::int64_t y, const T* grad, T* x) {
  using C = Compute<T>;
  C total[band];
  for (std::int64_t column = 0; column < g.image.w; ++column)
    for_bands(g, [&](std::int64_t first, std::int64_t count) {
      std::fill_n(total, count, C(0));
      for_windows(g, y, column, [&](std::int64_t, std::int64_t p, std::int64_t q) {
        const T* values = grad + result_at(g, n, p, q) + first;
        const C divisor = static_cast<C>(g.divisor(p, q)), share = C(1) / divisor;
        if (g.a.count_pad)
          for (std::int64_t k = 0; k < count; ++k) total[k] += static_cast<C>(values[k]) * share;
        else
          for (std::int64_t k = 0; k < count; ++k) total[k] += static_cast<C>(values[k]) / divisor;
      });
      T* to = x + image_at(g, n, y, column) + first;
      for (std::int64_t k = 0; k < count; ++k) to[k] = static_cast<T>(total[k]);
    });
}

// Elements are only moved; T is any type of their size.
template <class T>
void gather_line(const PoolGeometry& g, std::int64_t n, std::int64_t p, const std::uint8_t* offset,
                 const T* x, T* y) {
  for (std::int64_t q = 0; q < g.result.w; ++q)
    for (std::int64_t c = 0; c < g.channels; ++c) {
      const std::int64_t at = result_at(g, n, p, q) + c, cell = offset[at];
      y[at] = x[image_at(g, n, g.top(p) + cell / g.a.kernel.w,
                         q * g.a.stride.w - g.a.padding.w + cell % g.a.kernel.w) +
                c];
    }
}

}  // namespace

Kernel bind_max_pool2d_channels_last(const KernelRequest& request, const PoolGeometry& g) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      for_lines(g, g.result.h, g.result.w, [&](std::int64_t n, std::int64_t p) {
        max_line(g, n, p, args.in<T>(0), args.out<T>(), args.out<std::uint8_t>(1));
      });
    }};
  });
}

Kernel bind_max_pool2d_grad_channels_last(const KernelRequest& request, const PoolGeometry& g) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      for_lines(g, g.image.h, g.image.w, [&](std::int64_t n, std::int64_t y) {
        max_grad_line(g, n, y, args.in<std::uint8_t>(0), args.in<T>(1), args.out<T>());
      });
    }};
  });
}

Kernel bind_max_pool2d_gather_channels_last(const KernelRequest& request, const PoolGeometry& g) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      for_lines(g, g.result.h, g.result.w, [&](std::int64_t n, std::int64_t p) {
        gather_line(g, n, p, args.in<std::uint8_t>(0), args.in<T>(1), args.out<T>());
      });
    }};
  });
}

Kernel bind_avg_pool2d_channels_last(const KernelRequest& request, const PoolGeometry& g) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      for_lines(g, g.result.h, g.result.w, [&](std::int64_t n, std::int64_t p) {
        avg_line(g, n, p, args.in<T>(0), args.out<T>());
      });
    }};
  });
}

Kernel bind_avg_pool2d_grad_channels_last(const KernelRequest& request, const PoolGeometry& g) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[g](const KernelArgs& args) {
      for_lines(g, g.image.h, g.image.w, [&](std::int64_t n, std::int64_t y) {
        avg_grad_line(g, n, y, args.in<T>(0), args.out<T>());
      });
    }};
  });
}

}  // namespace ebb
