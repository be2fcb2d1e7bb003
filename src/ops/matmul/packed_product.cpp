#include "ops/matmul/packed_product.h"

#include <algorithm>
#include <type_traits>

#include "core/parallel.h"
#include "ebb/storage.h"
#include "ops/matmul/panels.h"

namespace ebb {
namespace {

// Sizes of a tile. Packing reads each number once, while multiplying uses it hundreds of times.
// Panels take at most 3 MiB, and partial sums for the next tile along the inner axis 2 MiB.
constexpr std::int64_t most_rows = 512, most_columns = 1024;

// Panels of the second factor that are multiplied one after the other with the same panel of the
// first: they stay in the second-level cache meanwhile, 64 KiB each at most.
constexpr std::int64_t group_panels = 8;

// The least work for which another thread pays off: about 10 µs.
constexpr double operations_per_worker = 2e6;

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return divided_up(count, step) * step;
}

// The size of nearly equal parts, at most `most`: a short last part would need as much packing as
// the others.
std::int64_t even_part(std::int64_t count, std::int64_t most) {
  return divided_up(count, std::max<std::int64_t>(1, divided_up(count, most)));
}

}  // namespace

// Where results go: to `out` when it is there, with `sums` for those that are not complete
// (unless no tile needs them), and otherwise to `sums`.
template <class T>
struct PackedProduct<T>::Target {
  const T* bias = nullptr;
  T* out = nullptr;
  std::int64_t out_stride = 0;
  Store store = Store::overwrite;
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
  bool sums_of_tile = false;  // they begin with the tile, not with the whole result
};

template <class T>
struct PackedProduct<T>::Tile {
  std::int64_t row, column, at;  // where it begins: in both factors' outer axes and in the inner
  std::int64_t rows, columns, depth;  // its size
  bool first, last;                   // along the inner axis
  std::int64_t panel;                 // rows of a panel of the first factor
  std::int64_t padded;                // depth in whole steps
  T *a, *b;

  std::int64_t panels_a() const { return divided_up(rows, panel); }
  std::int64_t panels_b() const { return divided_up(columns, panel_columns); }
  int rows_of(std::int64_t i) const { return static_cast<int>(std::min(panel, rows - i * panel)); }
  int columns_of(std::int64_t i) const {
    return static_cast<int>(std::min<std::int64_t>(panel_columns, columns - i * panel_columns));
  }
  T* panel_a(std::int64_t i) const { return a + i * panel * padded; }
  T* panel_b(std::int64_t i) const { return b + i * panel_columns * padded; }
};

template <class T>
bool PackedProduct<T>::available() {
  return panel_kernels<T>() != nullptr;
}

template <class T>
PackedProduct<T>::PackedProduct(std::int64_t rows, std::int64_t inner, std::int64_t columns,
                                Result result, const PanelKernels<T>* kernels)
    : kernels_(kernels),
      rows_(std::max<std::int64_t>(1, even_part(rows, most_rows))),
      columns_(std::clamp<std::int64_t>(columns, 1, most_columns)),
      depth_(std::clamp<std::int64_t>(inner, 1, kernels->depth)) {
  const auto take = [&](std::int64_t bytes) {
    const Bytes at = workspace_;
    workspace_ += round_up({bytes}, buffer_alignment);
    return at;
  };
  const std::int64_t lane = round_up(depth_, kernels->step) * sizeof(T);
  take(panel_of(rows_) * divided_up(rows_, panel_of(rows_)) * lane);
  b_at_ = take(divided_up(columns_, panel_columns) * panel_columns * lane);
  const bool waits = result == Result::numbers && !std::is_same_v<T, float> && inner > depth_;
  sums_at_ = take(waits ? rows_ * columns_ * sizeof(float) : 0);
}

// Lanes of the panels that so many rows are divided into.
template <class T>
std::int64_t PackedProduct<T>::panel_of(std::int64_t rows) const {
  return round_up(even_part(rows, kernels_->rows), kernels_->rows_step);
}

template <class T>
void PackedProduct<T>::write(const Factors& factors, const T* bias, T* out, std::int64_t stride,
                             std::byte* workspace, int workers) const {
  Target target;
  target.bias = bias, target.out = out, target.out_stride = stride;
  if constexpr (std::is_same_v<T, float>) {
    target.sums = out, target.sums_stride = stride;
  } else {
    target.sums = reinterpret_cast<float*>(workspace + sums_at_.count);
    target.sums_stride = columns_, target.sums_of_tile = true;
  }
  run(factors, target, workspace, workers);
}

template <class T>
void PackedProduct<T>::sum(const Factors& factors, Store store, float* out, std::int64_t stride,
                           std::byte* workspace, int workers) const {
  Target target;
  target.store = store, target.sums = out, target.sums_stride = stride;
  run(factors, target, workspace, workers);
}

template <class T>
void PackedProduct<T>::run(const Factors& factors, const Target& target, std::byte* workspace,
                           int workers) const {
  const std::int64_t rows = factors.a.rows, columns = factors.b.columns, inner = factors.a.columns;
  Tile tile{};
  tile.a = reinterpret_cast<T*>(workspace);
  tile.b = reinterpret_cast<T*>(workspace + b_at_.count);
  const auto multiply_tile = [&](std::int64_t row, std::int64_t at, bool same_second) {
    tile.row = row, tile.rows = std::min(rows_, rows - row);
    tile.panel = panel_of(tile.rows);
    tile.at = at, tile.depth = std::min(depth_, inner - at);
    tile.padded = round_up(tile.depth, kernels_->step);
    tile.first = at == 0, tile.last = at + tile.depth == inner;
    const double operations = 2.0 * static_cast<double>(tile.rows) *
                              static_cast<double>(tile.columns) * static_cast<double>(tile.depth);
    const int useful = static_cast<int>(
        std::clamp(operations / operations_per_worker, 1.0, static_cast<double>(workers)));
    pack(factors, tile, same_second, useful);
    multiply(target, tile, useful);
  };
  // Sums that wait in the workspace are of one tile, whose inner axis is walked before the next
  // tile begins. Elsewhere the second factor is packed once for all rows.
  const bool waits = target.sums_of_tile && inner > depth_;
  for (tile.column = 0; tile.column < columns; tile.column += columns_) {
    tile.columns = std::min(columns_, columns - tile.column);
    if (waits)
      for (std::int64_t row = 0; row < rows; row += rows_)
        for (std::int64_t at = 0; at < inner; at += depth_) multiply_tile(row, at, false);
    else
      // Once where nothing is summed: results are 0, or the bias.
      for (std::int64_t at = 0; at == 0 || at < inner; at += depth_)
        for (std::int64_t row = 0; row < rows; row += rows_) multiply_tile(row, at, row > 0);
  }
}

template <class T>
void PackedProduct<T>::pack(const Factors& factors, const Tile& tile, bool same_second,
                            int workers) const {
  const MatrixLayout &a = factors.a, &b = factors.b;
  const T* x = factors.x + tile.row * a.row_stride + tile.at * a.column_stride;
  const T* y = factors.y + tile.at * b.row_stride + tile.column * b.column_stride;
  const std::int64_t panels_b = same_second ? 0 : tile.panels_b();
  // Each share is as much of the first factor as of the second.
  parallel_for_workers(workers, 1, workers, [&](int, std::int64_t begin, std::int64_t end) {
    const auto from = [&](std::int64_t panels) { return panels * begin / workers; };
    const auto to = [&](std::int64_t panels) { return panels * end / workers; };
    for (std::int64_t i = from(tile.panels_a()); i < to(tile.panels_a()); ++i)
      kernels_->pack_first({x + i * tile.panel * a.row_stride, a.row_stride, a.column_stride,
                            tile.rows_of(i), tile.depth},
                           static_cast<int>(round_up(tile.rows_of(i), kernels_->rows_step)),
                           tile.panel_a(i));
    for (std::int64_t i = from(panels_b); i < to(panels_b); ++i) {
      const int count = tile.columns_of(i);
      kernels_->pack_second({y + i * panel_columns * b.column_stride, b.column_stride, b.row_stride,
                             count, tile.depth},
                            static_cast<int>(round_up(count, panel_lanes)), tile.panel_b(i));
    }
  });
}

template <class T>
void PackedProduct<T>::multiply(const Target& target, const Tile& tile, int workers) const {
  const std::int64_t panels_a = tile.panels_a(), panels_b = tile.panels_b();
  // Smaller groups where there would be too few for the threads to share evenly.
  const std::int64_t group =
      std::clamp<std::int64_t>(panels_a * panels_b / (8 * workers), 1, group_panels);
  float* sums =
      target.sums_of_tile ? target.sums : target.sums + tile.row * target.sums_stride + tile.column;
  const auto one = [&](std::int64_t i, std::int64_t j) {
    const std::int64_t row = i * tile.panel, column = j * panel_columns;
    PanelProduct<T> product;
    product.a = tile.panel_a(i), product.b = tile.panel_b(j), product.depth = tile.depth;
    product.rows = tile.rows_of(i), product.columns = tile.columns_of(j);
    product.sums = sums + row * target.sums_stride + column;
    product.sums_stride = target.sums_stride;
    product.add = !tile.first || target.store == Store::add;
    if (target.out && tile.last) {
      product.out = target.out + (tile.row + row) * target.out_stride + tile.column + column;
      product.out_stride = target.out_stride;
      product.bias = target.bias ? target.bias + tile.column + column : nullptr;
    }
    kernels_->multiply(product);
  };
  parallel_for_workers(divided_up(panels_b, group) * panels_a, 1, workers,
                       [&](int, std::int64_t begin, std::int64_t end) {
                         if (kernels_->begin) kernels_->begin();
                         for (std::int64_t unit = begin; unit < end; ++unit) {
                           const std::int64_t first = unit / panels_a * group;
                           for (std::int64_t j = first; j < std::min(first + group, panels_b); ++j)
                             one(unit % panels_a, j);
                         }
                         if (kernels_->end) kernels_->end();
                       });
}

template class PackedProduct<float>;
template class PackedProduct<BFloat16>;

}  // namespace ebb
