// Convolution as a product of matrices: each image is spread into columns, one per position of the
// kernel, that hold the cells under it. Serves float64 and the sizes that oneDNN refuses.
#include <algorithm>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/conv2d/conv2d.h"
#include "ops/library_size.h"
#include "ops/matmul/gemm.h"

namespace ebb {
namespace {

template <class T>
struct Columns {
  ConvGeometry g;
  bool bias = false;

  std::int64_t channels() const { return g.in / g.groups; }
  std::int64_t rows() const { return channels() * g.kernel.h * g.kernel.w; }
  std::int64_t columns() const { return g.result.h * g.result.w; }
  // The number of channels that is worth a thread.
  std::int64_t grain() const {
    return std::max<std::int64_t>(1, 32768 / (g.kernel.h * g.kernel.w * columns()));
  }
  Bytes workspace() const {
    return Bytes{rows() * columns() * static_cast<std::int64_t>(sizeof(T))};
  }

  // Elements between neighbouring channels of an image, and between neighbouring cells of a row.
  std::int64_t channel_step() const { return g.channels_last() ? 1 : g.image.h * g.image.w; }
  std::int64_t cell_step() const { return g.channels_last() ? g.in : 1; }
  // The place of tap (i, j) of a channel in a row of the weight.
  std::int64_t tap(std::int64_t channel, std::int64_t i, std::int64_t j) const {
    return g.channels_last() ? (i * g.kernel.w + j) * channels() + channel
                             : (channel * g.kernel.h + i) * g.kernel.w + j;
  }

  // Calls visit(row, first, last, cell) for every line of result positions along w. Positions in
  // [first, last) read the image from `cell` on, one stride apart; the others read padding.
  template <class Visit>
  void for_lines(std::int64_t channel, const Visit& visit) const {
    for (std::int64_t i = 0; i < g.kernel.h; ++i)
      for (std::int64_t j = 0; j < g.kernel.w; ++j) {
        const std::int64_t row = tap(channel, i, j);
        const std::int64_t left = j * g.dilation.w - g.padding.w;
        const auto reach = [&](std::int64_t x) {  // the first position at or right of image cell x
          return std::clamp<std::int64_t>(x <= left ? 0 : (x - left + g.stride.w - 1) / g.stride.w,
                                          0, g.result.w);
        };
        for (std::int64_t p = 0; p < g.result.h; ++p) {
          const std::int64_t y = p * g.stride.h + i * g.dilation.h - g.padding.h;
          const bool inside = y >= 0 && y < g.image.h;
          const std::int64_t first = inside ? reach(0) : 0, last = inside ? reach(g.image.w) : 0;
          visit(
              row, p, first, std::max(first, last),
              channel * channel_step() + (y * g.image.w + left + first * g.stride.w) * cell_step());
        }
      }
  }

  void spread(const T* image, T* to) const {
    const std::int64_t step = g.stride.w * cell_step();
    parallel_for(channels(), grain(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c)
        for_lines(c, [&](std::int64_t row, std::int64_t p, std::int64_t first, std::int64_t last,
                         std::int64_t cell) {
          T* line = to + row * columns() + p * g.result.w;
          std::fill(line, line + first, T(0));
          for (std::int64_t q = first; q < last; ++q) line[q] = image[cell + (q - first) * step];
          std::fill(line + last, line + g.result.w, T(0));
        });
    });
  }

  // The transpose of `spread`: each cell of the image becomes the sum of its copies.
  void gather(const T* from, T* image) const {
    const std::int64_t step = g.stride.w * cell_step();
    parallel_for(channels(), grain(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        for (std::int64_t k = 0; k < g.image.h * g.image.w; ++k)
          image[c * channel_step() + k * cell_step()] = T(0);
        for_lines(c, [&](std::int64_t row, std::int64_t p, std::int64_t first, std::int64_t last,
                         std::int64_t cell) {
          const T* line = from + row * columns() + p * g.result.w;
          for (std::int64_t q = first; q < last; ++q) image[cell + (q - first) * step] += line[q];
        });
      }
    });
  }

  static MatrixLayout dense(std::int64_t rows, std::int64_t columns) {
    return {rows, columns, columns, 1};
  }
  static MatrixLayout transposed(const MatrixLayout& m) {
    return {m.columns, m.rows, m.column_stride, m.row_stride};
  }

  // Calls body with the image, the result and the weight of each image and group, in order.
  template <class X, class Y, class W, class Body>
  void for_groups(X* x, Y* y, W* weight, const Body& body) const {
    const std::int64_t in = channels(), out = g.out / g.groups;
    const std::int64_t x_step = g.channels_last() ? in : g.image_elements() / g.groups;
    const std::int64_t y_step = g.channels_last() ? out : g.result_elements() / g.groups;
    for (std::int64_t n = 0; n < g.batch; ++n)
      for (std::int64_t k = 0; k < g.groups; ++k)
        body(n, k, x + n * g.image_elements() + k * x_step,
             y + n * g.result_elements() + k * y_step, weight + k * out * rows());
  }

  // The result of a group, as (channels, positions).
  MatrixLayout result() const {
    const MatrixLayout first = dense(g.out / g.groups, columns());
    if (!g.channels_last()) return first;
    return {first.rows, first.columns, 1, g.out};
  }

  void forward(const KernelArgs& args) const {
    const std::int64_t out = g.out / g.groups;
    const T* offsets = bias ? args.in<T>(2) : nullptr;
    T* spreaded = args.scratch<T>();
    for_groups(args.in<T>(0), args.out<T>(), args.in<T>(1),
               [&](std::int64_t, std::int64_t k, const T* x, T* y, const T* weight) {
                 spread(x, spreaded);
                 const MatrixLayout to = result();
                 if (offsets)
                   for (std::int64_t o = 0; o < out; ++o)
                     for (std::int64_t p = 0; p < columns(); ++p)
                       y[o * to.row_stride + p * to.column_stride] = offsets[k * out + o];
                 // Products are written row by row: with channels last, a row is a position.
                 const MatrixLayout w = dense(out, rows()), taps = dense(rows(), columns());
                 const T beta = offsets ? T(1) : T(0);
                 if (g.channels_last())
                   gemm(transposed(taps), spreaded, transposed(w), weight, beta, y, g.out);
                 else
                   gemm(w, weight, taps, spreaded, beta, y, columns());
               });
  }

  void input_grad(const KernelArgs& args) const {
    T* spreaded = args.scratch<T>();
    for_groups(args.out<T>(), args.in<T>(1), args.in<T>(0),
               [&](std::int64_t, std::int64_t, T* x, const T* y, const T* weight) {
                 gemm(transposed(dense(g.out / g.groups, rows())), weight, result(), y, T(0),
                      spreaded, columns());
                 gather(spreaded, x);
               });
  }

  void weight_grad(const KernelArgs& args) const {
    T* spreaded = args.scratch<T>();
    if (g.batch == 0) std::fill_n(args.out<T>(), g.weight_elements(), T(0));
    for_groups(args.in<T>(0), args.in<T>(1), args.out<T>(),
               [&](std::int64_t n, std::int64_t, const T* x, const T* y, T* weight) {
                 spread(x, spreaded);
                 gemm(result(), y, transposed(dense(rows(), columns())), spreaded,
                      n == 0 ? T(0) : T(1), weight, rows());
               });
  }
};

std::string_view name_of(ConvKind kind) {
  return kind == ConvKind::forward      ? "conv2d"
         : kind == ConvKind::input_grad ? "conv2d_input_grad"
                                        : "conv2d_weight_grad";
}

}  // namespace

template <class T>
Kernel bind_conv_columns(ConvKind kind, const ConvGeometry& geometry, bool bias) {
  const Columns<T> c{geometry, bias};
  require_library_sizes(
      name_of(kind),
      {{"positions", c.columns()}, {"cells under a kernel", c.rows()}, {"channels", geometry.out}});
  switch (kind) {
    case ConvKind::forward:
      return {[c](const KernelArgs& args) { c.forward(args); }, c.workspace()};
    case ConvKind::input_grad:
      return {[c](const KernelArgs& args) { c.input_grad(args); }, c.workspace()};
    case ConvKind::weight_grad:
      break;
  }
  return {[c](const KernelArgs& args) { c.weight_grad(args); }, c.workspace()};
}

template Kernel bind_conv_columns<float>(ConvKind, const ConvGeometry&, bool);
template Kernel bind_conv_columns<double>(ConvKind, const ConvGeometry&, bool);

}  // namespace ebb
