// Two ways to multiply. With few rows (forward only), every code is converted to a number in a
// register and used at once. Otherwise tiles of the weight are unpacked (tiled_linear.h). The
// choice depends on shapes only, so the number of threads changes no bit.
#include <algorithm>
#include <type_traits>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/matmul/gemm.h"
#include "ops/pointwise/convert.h"
#include "ops/quantised_linear/code_lanes.h"
#include "ops/quantised_linear/codec.h"
#include "ops/quantised_linear/few_rows_of_codes.h"
#include "ops/quantised_linear/quantised_linear.h"
#include "ops/tiled_linear.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

// The size of a weight's tile: 2 MiB in float32. Its columns are a multiple of every block.
constexpr std::int64_t tile_rows = 512, tile_columns = 1024;

template <class S>
void unpack_all(const Encoding& e, const KernelArgs& args) {
  const PackedMatrix w(e, args.in<std::uint8_t>(0));
  S* to = args.out<S>();
  if constexpr (std::is_same_v<S, Compute<S>>) {
    w.unpack(0, e.rows, 0, e.columns, to);
  } else {
    parallel_for(e.rows, std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(e.columns, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                   float values[1024];  // the largest block
                   for (std::int64_t r = begin; r < end; ++r)
                     for (std::int64_t at = 0; at < e.columns; at += e.block) {
                       const std::int64_t count = std::min(e.block, e.columns - at);
                       unpack_block(e.kind, w.codes(r) + (e.bits() == 8 ? at : at / 2), count,
                                    w.scale(r, at / e.block), values);
                       narrow(values, to + r * e.columns + at, count);
                     }
                 });
  }
}

template <class S>
void pack_all(const Encoding& e, const KernelArgs& args, Bytes scales_at, std::int64_t rows_once) {
  Packer packer(e, args.out<std::uint8_t>(), args.scratch<float>(scales_at));
  const S* from = args.in<S>(0);
  if constexpr (std::is_same_v<S, float>) {
    packer.rows(from, 0, e.rows);
  } else {
    float* values = args.scratch<float>();
    for (std::int64_t row = 0; row < e.rows; row += rows_once) {
      const std::int64_t rows = std::min(rows_once, e.rows - row);
      if constexpr (std::is_same_v<S, double>)
        std::transform(from + row * e.columns, from + (row + rows) * e.columns, values,
                       [](double x) { return static_cast<float>(x); });
      else
        widen(from + row * e.columns, values, rows * e.columns);
      packer.rows(values, row, rows);
    }
  }
  packer.finish();
}

}  // namespace

Kernel bind_quantise_cpu(const KernelRequest& request, const Encoding& e) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    WorkspaceAreas areas;
    // The number of rows that are converted at once: about 1 MiB, at least one row.
    const std::int64_t rows =
        std::max<std::int64_t>(1, (1 << 18) / std::max<std::int64_t>(e.columns, 1));
    if (!std::is_same_v<S, float>) areas.add<float>(std::min(rows, e.rows) * e.columns);
    const Bytes scales_at = areas.add<float>(e.scales());
    return Kernel{[=](const KernelArgs& args) { pack_all<S>(e, args, scales_at, rows); },
                  areas.total()};
  });
}

Kernel bind_dequantise_cpu(const KernelRequest& request, const DequantiseAttributes& a) {
  return dispatch_floating(request, a.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[e = a.encoding](const KernelArgs& args) { unpack_all<S>(e, args); }};
  });
}

Kernel bind_quantised_linear_cpu(const KernelRequest& request, const QuantisedLinearAttributes& a) {
  const std::int64_t rows = request.in(0).shape()[0];
  require_gemm_sizes(request.op.name(), MatrixLayout::plain(rows, a.inner()),
                     MatrixLayout::plain(std::min(a.inner(), tile_columns), a.outer()), a.outer());
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<S, double>)
      if (const DType dtype = request.out().dtype();
          rows >= 1 && rows <= FewRowsOfCodes::most_rows(a.encoding.kind, dtype) && !a.back) {
        const FewRowsOfCodes product(a.encoding, rows, dtype);
        return Kernel{[product](const KernelArgs& args) {
                        product.run(args.in<S>(0), args.in<std::uint8_t>(1), args.out<S>(),
                                    args.scratch<std::byte>());
                      },
                      product.workspace()};
      }
    const TiledLinear<S> tiled({.back = a.back,
                                .rows = rows,
                                .inner = a.inner(),
                                .outer = a.outer(),
                                .tile_rows = tile_rows,
                                .tile_columns = tile_columns});
    return Kernel{[tiled, e = a.encoding](const KernelArgs& args) {
                    const PackedMatrix w(e, args.in<std::uint8_t>(1));
                    tiled(args, [&](auto... part_and_to) { w.unpack(part_and_to...); });
                  },
                  tiled.workspace()};
  });
}

}  // namespace ebb
