// The specification of the codes: magnitudes are compared as bits, numbers are divided by a power
// of two and rounded (codec.h), and codes are multiplied in float32.
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/fp8/fp8.h"
#include "ops/matmul/product.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

// A bfloat16 matrix whose rows may lie apart.
struct Factor {
  std::int64_t rows, columns, stride;

  explicit Factor(const Arg& arg)
      : rows(arg.shape()[0]), columns(arg.shape()[1]), stride(arg.strides[0]) {}
};

std::uint32_t magnitude_of(BFloat16 x) {
  return static_cast<std::uint32_t>(x.bits & 0x7fffu) << 16;
}

void find_magnitudes(const Factor& x, const KernelArgs& args) {
  const BFloat16* from = args.in<BFloat16>(0);
  std::uint32_t* to = args.out<std::uint32_t>();
  const std::int64_t elements = x.rows * x.columns;
  parallel_for(fp8_parts, std::max<std::int64_t>(1, fp8_parts * 65536 / elements),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t part = begin; part < end; ++part) {
                   const auto [first, last] = fp8_part(elements, part);
                   std::uint32_t largest = 0;
                   for (std::int64_t i = first; i < last; ++i)
                     largest = std::max(
                         largest, magnitude_of(from[i / x.columns * x.stride + i % x.columns]));
                   to[part] = largest;
                 }
               });
}

void encode_matrix(const Factor& x, const Fp8QuantiseAttributes& a, const KernelArgs& args) {
  const BFloat16* from = args.in<BFloat16>(0);
  const std::uint32_t* magnitudes = args.in<std::uint32_t>(1);
  const std::uint32_t step =
      fp8_step_bits(a.format, *std::max_element(magnitudes, magnitudes + fp8_parts));
  const float inverse = std::bit_cast<float>(fp8_inverse_step_bits(step));
  std::memcpy(args.out<std::byte>(a.step_output()), &step, sizeof step);
  std::uint8_t* plain = a.makes_plain() ? args.out<std::uint8_t>(0) : nullptr;
  std::uint8_t* turned =
      a.makes_transposed() ? args.out<std::uint8_t>(a.makes_plain() ? 1 : 0) : nullptr;
  // Blocks of rows, so that a run of a column's codes is written at once.
  constexpr std::int64_t block = fp8_unit;
  parallel_for(x.rows / block, std::max<std::int64_t>(1, 4096 / x.columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin * block; row < end * block; row += block)
                   for (std::int64_t column = 0; column < x.columns; ++column) {
                     std::uint8_t codes[block];
                     for (std::int64_t r = 0; r < block; ++r) {
                       const float value = static_cast<float>(from[(row + r) * x.stride + column]);
                       codes[r] = fp8_encode(a.format, value * inverse);
                       if (plain) plain[(row + r) * x.columns + column] = codes[r];
                     }
                     if (turned) std::memcpy(turned + column * x.rows + row, codes, block);
                   }
               });
}

// Tiles of both factors are decoded and multiplied; a tile of the result is rounded when all its
// products are in it.
class CodeProduct {
 public:
  CodeProduct(const KernelRequest& request, const Fp8MatmulAttributes& a)
      : attributes_(a),
        rows_(request.in(0).shape()[0]),
        columns_(request.in(1).shape()[0]),
        inner_(request.in(0).shape()[1]),
        tile_rows_(std::min(rows_, most_rows)),
        tile_columns_(std::min(columns_, most_rows)),
        depth_(std::min(inner_, most_depth)),
        product_(tile_rows_, depth_, tile_columns_) {
    a_at_ = areas_.add<float>(tile_rows_ * depth_);
    b_at_ = areas_.add<float>(tile_columns_ * depth_);
    out_at_ = areas_.add<float>(tile_rows_ * tile_columns_);
    values_at_ = areas_.add<float>(2 * 256);
    product_at_ = areas_.add(product_.workspace());
  }
  Bytes workspace() const { return areas_.total(); }

  void operator()(const KernelArgs& args) const {
    float* values = args.scratch<float>(values_at_);
    const auto of_a = fp8_values(attributes_.a), of_b = fp8_values(attributes_.b);
    std::copy(of_a.begin(), of_a.end(), values);
    std::copy(of_b.begin(), of_b.end(), values + 256);
    for (std::int64_t row = 0; row < rows_; row += tile_rows_)
      for (std::int64_t column = 0; column < columns_; column += tile_columns_)
        tile(args, row, column);
  }

 private:
  static constexpr std::int64_t most_rows = 1024, most_depth = 512;

  void tile(const KernelArgs& args, std::int64_t row, std::int64_t column) const {
    float *a = args.scratch<float>(a_at_), *b = args.scratch<float>(b_at_),
          *out = args.scratch<float>(out_at_);
    const float* values = args.scratch<float>(values_at_);
    const std::int64_t rows = std::min(tile_rows_, rows_ - row),
                       columns = std::min(tile_columns_, columns_ - column);
    for (std::int64_t k = 0; k < inner_; k += depth_) {
      const std::int64_t depth = std::min(depth_, inner_ - k);
      decode(args.in<std::uint8_t>(0) + row * inner_ + k, rows, depth, values, a);
      decode(args.in<std::uint8_t>(1) + column * inner_ + k, columns, depth, values + 256, b);
      product_.sum({MatrixLayout::plain(rows, depth), a, MatrixLayout::swapped(depth, columns), b},
                   k == 0 ? Store::overwrite : Store::add, out, columns,
                   args.scratch<std::byte>(product_at_), threads());
    }
    finish(args, row, column, rows, columns);
  }

  // → (rows, depth)
  void decode(const std::uint8_t* codes, std::int64_t rows, std::int64_t depth, const float* values,
              float* to) const {
    parallel_for(rows, std::max<std::int64_t>(1, 16384 / depth),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r)
                     for (std::int64_t k = 0; k < depth; ++k)
                       to[r * depth + k] = values[codes[r * inner_ + k]];
                 });
  }

  void finish(const KernelArgs& args, std::int64_t row, std::int64_t column, std::int64_t rows,
              std::int64_t columns) const {
    const float* sums = args.scratch<float>(out_at_);
    const float step_a = *args.in<float>(2), step_b = *args.in<float>(3);
    const BFloat16* bias = attributes_.bias ? args.in<BFloat16>(4) + column : nullptr;
    const BFloat16* added =
        attributes_.added ? args.in<BFloat16>(attributes_.bias ? 5 : 4) : nullptr;
    parallel_for(rows, std::max<std::int64_t>(1, 16384 / columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) {
                     const std::int64_t at = (row + r) * columns_ + column;
                     for (std::int64_t c = 0; c < columns; ++c) {
                       float y = sums[r * columns + c] * step_a * step_b;
                       if (bias) y += static_cast<float>(bias[c]);
                       if (added) y += static_cast<float>(added[at + c]);
                       args.out<BFloat16>()[at + c] = BFloat16(y);
                     }
                   }
                 });
  }

  Fp8MatmulAttributes attributes_;
  std::int64_t rows_, columns_, inner_;
  std::int64_t tile_rows_, tile_columns_, depth_;
  MatrixProduct<float> product_;
  WorkspaceAreas areas_;
  Bytes a_at_, b_at_, out_at_, values_at_, product_at_;
};

}  // namespace

Kernel bind_fp8_amax_cpu(const KernelRequest& request, const NoAttributes&) {
  return {[x = Factor(request.in(0))](const KernelArgs& args) { find_magnitudes(x, args); }};
}

Kernel bind_fp8_quantise_cpu(const KernelRequest& request, const Fp8QuantiseAttributes& a) {
  return {[x = Factor(request.in(0)), a](const KernelArgs& args) { encode_matrix(x, a, args); }};
}

Kernel bind_fp8_matmul_cpu(const KernelRequest& request, const Fp8MatmulAttributes& a) {
  const CodeProduct product(request, a);
  return {product, product.workspace()};
}

}  // namespace ebb
