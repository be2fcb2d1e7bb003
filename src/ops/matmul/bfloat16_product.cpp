#include "ops/matmul/bfloat16_product.h"

#include <algorithm>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/matmul/bfloat16_panels.h"

namespace ebb {
namespace {

// Sizes of a tile. Packing reads each number once, while multiplying uses it hundreds of times.
// Panels take at most 3 MiB, and partial sums for the next tile along the inner axis 2 MiB.
constexpr std::int64_t most_rows = 512, most_columns = 1024, most_depth = 1024;

// Panels of the second factor that are multiplied one after the other with the same panel of the
// first: they stay in the second-level cache meanwhile, 64 KiB each at most.
constexpr std::int64_t group_panels = 8;

// The least work for which another thread pays off: about 10 µs.
constexpr double operations_per_worker = 2e6;

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

// The size of nearly equal parts, at most `most`: a short last part would need as much packing as
// the others.
std::int64_t even_part(std::int64_t count, std::int64_t most) {
  return divided_up(count, std::max<std::int64_t>(1, divided_up(count, most)));
}

}  // namespace

// Where results go: to `out` when it is there, with `sums` for those that are not complete
// (unless no tile needs them), and otherwise to `sums`.
struct BFloat16Product::Target {
  const BFloat16* bias = nullptr;
  BFloat16* out = nullptr;
  std::int64_t out_stride = 0;
  Store store = Store::overwrite;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
};

struct BFloat16Product::Tile {
  std::int64_t row, column, at;  // where it begins: in both factors' outer axes and in the inner
  std::int64_t rows, columns, depth;  // its size
  bool first, last;                   // along the inner axis
  std::int64_t panel;                 // rows of a panel of the first factor
  BFloat16Pair *a, *b;

  std::int64_t panels_a() const { return divided_up(rows, panel); }
  std::int64_t panels_b() const { return divided_up(columns, panel_columns); }
  int rows_of(std::int64_t i) const { return static_cast<int>(std::min(panel, rows - i * panel)); }
  int columns_of(std::int64_t i) const {
    return static_cast<int>(std::min<std::int64_t>(panel_columns, columns - i * panel_columns));
  }
  BFloat16Pair* panel_a(std::int64_t i) const { return a + i * panel * pairs_of(depth); }
  BFloat16Pair* panel_b(std::int64_t i) const { return b + i * panel_columns * pairs_of(depth); }
};

bool BFloat16Product::available() { return bfloat16_panels_work(); }

BFloat16Product::BFloat16Product(std::int64_t rows, std::int64_t inner, std::int64_t columns,
                                 Result result)
    : rows_(even_part(rows, most_rows)),
      columns_(std::min(columns, most_columns)),
      depth_(std::min(inner, most_depth)) {
  const auto take = [&](std::int64_t numbers, std::size_t size) {
    const Bytes at = workspace_;
    workspace_ += round_up({numbers * static_cast<std::int64_t>(size)}, buffer_alignment);
    return at;
  };
  take(rows_ * pairs_of(depth_), sizeof(BFloat16Pair));
  b_at_ = take(divided_up(columns_, panel_columns) * panel_columns * pairs_of(depth_),
               sizeof(BFloat16Pair));
  const bool waits = result == Result::bfloat16 && inner > depth_;
  sums_at_ = take(waits ? rows_ * columns_ : 0, sizeof(float));
}

void BFloat16Product::operator()(const Factors& factors, const BFloat16* bias, BFloat16* out,
                                 std::int64_t stride, std::byte* workspace, int workers) const {
  Target target;
  target.bias = bias, target.out = out, target.out_stride = stride;
  target.sums = reinterpret_cast<float*>(workspace + sums_at_.count), target.sums_stride = columns_;
  run(factors, target, workspace, workers);
}

void BFloat16Product::operator()(const Factors& factors, Store store, float* out,
                                 std::int64_t stride, std::byte* workspace, int workers) const {
  Target target;
  target.store = store, target.sums = out, target.sums_stride = stride;
  run(factors, target, workspace, workers);
}

void BFloat16Product::run(const Factors& factors, const Target& target, std::byte* workspace,
                          int workers) const {
  const std::int64_t rows = factors.a.rows, columns = factors.b.columns, inner = factors.a.columns;
  for (std::int64_t column = 0; column < columns; column += columns_)
    for (std::int64_t row = 0; row < rows; row += rows_) {
      Tile tile{};
      tile.row = row, tile.rows = std::min(rows_, rows - row);
      tile.column = column, tile.columns = std::min(columns_, columns - column);
      tile.panel = even_part(tile.rows, panel_rows);
      tile.a = reinterpret_cast<BFloat16Pair*>(workspace);
      tile.b = reinterpret_cast<BFloat16Pair*>(workspace + b_at_.count);
      do {  // once also where nothing is summed
        tile.depth = std::min(depth_, inner - tile.at);
        tile.first = tile.at == 0, tile.last = tile.at + tile.depth == inner;
        const double operations = 2.0 * static_cast<double>(tile.rows) *
                                  static_cast<double>(tile.columns) *
                                  static_cast<double>(tile.depth);
        const int useful = static_cast<int>(
            std::clamp(operations / operations_per_worker, 1.0, static_cast<double>(workers)));
        pack(factors, tile, useful);
        multiply(target, tile, useful);
        tile.at += tile.depth;
      } while (!tile.last);
    }
}

void BFloat16Product::pack(const Factors& factors, const Tile& tile, int workers) const {
  const MatrixLayout &a = factors.a, &b = factors.b;
  const BFloat16* x = factors.x + tile.row * a.row_stride + tile.at * a.column_stride;
  const BFloat16* y = factors.y + tile.at * b.row_stride + tile.column * b.column_stride;
  // Each share is as much of the first factor as of the second.
  parallel_for_workers(workers, 1, workers, [&](int, std::int64_t begin, std::int64_t end) {
    const auto from = [&](std::int64_t panels) { return panels * begin / workers; };
    const auto to = [&](std::int64_t panels) { return panels * end / workers; };
    for (std::int64_t i = from(tile.panels_a()); i < to(tile.panels_a()); ++i)
      pack_panel({x + i * tile.panel * a.row_stride, a.row_stride, a.column_stride, tile.rows_of(i),
                  tile.depth},
                 tile.rows_of(i), tile.panel_a(i));
    for (std::int64_t i = from(tile.panels_b()); i < to(tile.panels_b()); ++i) {
      const int count = tile.columns_of(i),
                width = count > panel_columns / 2 ? panel_columns : panel_columns / 2;
      pack_panel({y + i * panel_columns * b.column_stride, b.column_stride, b.row_stride, count,
                  tile.depth},
                 width, tile.panel_b(i));
    }
  });
}

void BFloat16Product::multiply(const Target& target, const Tile& tile, int workers) const {
  const std::int64_t panels_a = tile.panels_a(), panels_b = tile.panels_b();
  // Smaller groups where there would be too few for the threads to share evenly.
  const std::int64_t group =
      std::clamp<std::int64_t>(panels_a * panels_b / (8 * workers), 1, group_panels);
  // A tile's sums in the workspace start at 0.
  float* sums =
      target.out ? target.sums : target.sums + tile.row * target.sums_stride + tile.column;
  const auto one = [&](std::int64_t i, std::int64_t j) {
    const std::int64_t row = i * tile.panel, column = j * panel_columns;
    PanelProduct product;
    product.a = tile.panel_a(i), product.b = tile.panel_b(j), product.pairs = pairs_of(tile.depth);
    product.rows = tile.rows_of(i), product.columns = tile.columns_of(j);
    product.sums = sums + row * target.sums_stride + column;
    product.sums_stride = target.sums_stride;
    product.add = !tile.first || target.store == Store::add;
    if (target.out && tile.last) {
      product.out = target.out + (tile.row + row) * target.out_stride + tile.column + column;
      product.out_stride = target.out_stride;
      product.bias = target.bias ? target.bias + tile.column + column : nullptr;
    }
    multiply_panels(product);
  };
  parallel_for_workers(divided_up(panels_b, group) * panels_a, 1, workers,
                       [&](int, std::int64_t begin, std::int64_t end) {
                         for (std::int64_t unit = begin; unit < end; ++unit) {
                           const std::int64_t first = unit / panels_a * group;
                           for (std::int64_t j = first; j < std::min(first + group, panels_b); ++j)
                             one(unit % panels_a, j);
                         }
                       });
}

}  // namespace ebb
