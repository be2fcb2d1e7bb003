// Products of a block of queries with tiles of keys and values in bfloat16, by the panels of matrix
// products (ops/matmul/panels.h), where these multiply tiles. Weights and gradients of scores are
// rounded to bfloat16 before they are multiplied, as on a GPU; sums are float32.
#pragma once

#include "ops/attention/vector_products.h"
#include "ops/matmul/panels.h"

namespace ebb::attention {

class PanelProducts {
  using T = BFloat16;
  static constexpr int width = lanes<float>, edge = panel_columns;

 public:
  static constexpr bool scales_queries = false;
  static constexpr bool exact = false;

  // Whether this processor has the instructions, and vectors are as wide as its panels.
  static bool available() { return width == edge && bfloat16_tile_kernels() != nullptr; }

  struct Scratch {
    Bytes rows, queries, query_columns, gradients, grad_rows, grad_columns, first, second, halves;

    Scratch(const Problem& p, Direction direction, ScratchLayout& layout) {
      const std::int64_t size = padded(p.size), value = padded(p.value_size);
      rows = layout.add<float>(width * std::max(size, value));
      queries = layout.add<T>(edge * size);
      first = layout.add<T>(edge * std::max<std::int64_t>({size, value, tile_keys}));
      second = layout.add<T>(edge * tile_keys);
      halves = layout.add<T>(tile_keys * width);
      if (direction == Direction::forward) return;
      query_columns = layout.add<T>(size * edge);
      gradients = layout.add<float>(width * value);
      grad_rows = layout.add<T>(edge * value);
      grad_columns = layout.add<T>(value * edge);
    }
  };

  PanelProducts(const Problem& p, const Scratch& scratch, std::byte* areas)
      : p_(p), kernels_(*bfloat16_tile_kernels()) {
    const auto area = [&](Bytes at) { return reinterpret_cast<T*>(areas + at.count); };
    rows_ = reinterpret_cast<float*>(areas + scratch.rows.count);
    gradients_ = reinterpret_cast<float*>(areas + scratch.gradients.count);
    queries_ = area(scratch.queries), query_columns_ = area(scratch.query_columns);
    grad_rows_ = area(scratch.grad_rows), grad_columns_ = area(scratch.grad_columns);
    first_ = area(scratch.first), second_ = area(scratch.second), halves_ = area(scratch.halves);
    backward_ = scratch.gradients.count != 0;
    kernels_.begin();
  }
  ~PanelProducts() { kernels_.end(); }
  PanelProducts(const PanelProducts&) = delete;
  PanelProducts& operator=(const PanelProducts&) = delete;

  float* rows() const { return rows_; }
  const float* gradients() const { return gradients_; }

  void take_queries(const T* from, std::int64_t stride, std::int64_t count) {
    kernels_.pack_second({from, stride, 1, static_cast<int>(count), p_.size}, edge, queries_);
    if (backward_) pack_columns(from, stride, count, p_.size, query_columns_);
    count_ = count;
  }
  void take_gradients(const T* from, std::int64_t stride, std::int64_t count) {
    load_rows(from, stride, count, p_.value_size, 1.0f, gradients_);
    kernels_.pack_second({from, stride, 1, static_cast<int>(count), p_.value_size}, edge,
                         grad_rows_);
    pack_columns(from, stride, count, p_.value_size, grad_columns_);
  }

  void scores(const T* keys, std::int64_t stride, std::int64_t count, float* out) {
    keys_ = keys, stride_ = stride;
    row_products(keys, stride, count, p_.size, queries_, out);
    const float scale = static_cast<float>(p_.scale);
    for (std::int64_t i = 0; i < count * width; ++i) out[i] *= scale;
  }
  void value_scores(const T* values, std::int64_t stride, std::int64_t count, float* out) {
    row_products(values, stride, count, p_.value_size, grad_rows_, out);
  }
  void add_values(const T* values, std::int64_t stride, std::int64_t count, const float* weights,
                  float* result) {
    narrow(weights, halves_, count * width);
    add_column_products(values, stride, count, p_.value_size, result);
  }

  void add_to_dv(std::int64_t count, const float* weights, float* dv, std::int64_t row) {
    narrow(weights, halves_, count * width);
    add_key_rows(count, p_.value_size, grad_columns_, dv, row);
  }
  void add_to_dk_dq(std::int64_t count, const float* dscores, float* dk, std::int64_t row,
                    float* dq) {
    narrow(dscores, halves_, count * width);
    add_key_rows(count, p_.size, query_columns_, dk, row);
    add_column_products(keys_, stride_, count, p_.size, dq);
  }

 private:
  // To whole panels, which are whole steps of the inner axis too.
  static constexpr std::int64_t padded(std::int64_t count) {
    return (count + edge - 1) / edge * edge;
  }
  // Lanes of a panel for so many, at most `edge`.
  static int lanes_for(std::int64_t count) { return count > panel_lanes ? edge : panel_lanes; }

  void multiply(const T* a, std::int64_t rows, const T* b, std::int64_t columns, std::int64_t depth,
                float* sums, std::int64_t stride, bool add) const {
    PanelProduct<T> product;
    product.a = a, product.b = b, product.depth = depth;
    product.rows = static_cast<int>(rows), product.columns = static_cast<int>(columns);
    product.sums = sums, product.sums_stride = stride, product.add = add;
    kernels_.multiply(product);
  }

  // Panels of up to `edge` columns each of the `count` rows, as second factors.
  void pack_columns(const T* from, std::int64_t stride, std::int64_t count, std::int64_t columns,
                    T* to) const {
    for (std::int64_t d = 0; d < columns; d += edge) {
      const std::int64_t some = std::min<std::int64_t>(edge, columns - d);
      kernels_.pack_second({from + d, 1, stride, static_cast<int>(some), count}, lanes_for(some),
                           to + d * edge);
    }
  }

  // out (count, width) = rows · panel, where the panel holds the queries' columns.
  void row_products(const T* rows, std::int64_t stride, std::int64_t count, std::int64_t size,
                    const T* panel, float* out) const {
    for (std::int64_t j = 0; j < count; j += edge) {
      const std::int64_t some = std::min<std::int64_t>(edge, count - j);
      kernels_.pack_first({rows + j * stride, stride, 1, static_cast<int>(some), size},
                          lanes_for(some), first_);
      multiply(first_, lanes_for(some), panel, edge, size, out + j * width, width, false);
    }
  }

  // out (size, width) += rowsᵀ · halves.
  void add_column_products(const T* rows, std::int64_t stride, std::int64_t count,
                           std::int64_t size, float* out) const {
    kernels_.pack_second({halves_, 1, width, edge, count}, edge, second_);
    for (std::int64_t d = 0; d < size; d += edge) {
      const std::int64_t some = std::min<std::int64_t>(edge, size - d);
      kernels_.pack_first({rows + d, 1, stride, static_cast<int>(some), count}, lanes_for(some),
                          first_);
      multiply(first_, lanes_for(some), second_, edge, count, out + d * width, width, true);
    }
  }

  // out (count, size) += halves · rows, which are packed by columns.
  void add_key_rows(std::int64_t count, std::int64_t size, const T* columns, float* out,
                    std::int64_t row) const {
    for (std::int64_t j = 0; j < count; j += edge) {
      const std::int64_t some = std::min<std::int64_t>(edge, count - j);
      kernels_.pack_first({halves_ + j * width, width, 1, static_cast<int>(some), count_},
                          lanes_for(some), first_);
      for (std::int64_t d = 0; d < size; d += edge)
        multiply(first_, some, columns + d * edge,
                 lanes_for(std::min<std::int64_t>(edge, size - d)), count_, out + j * row + d, row,
                 true);
    }
  }

  const Problem& p_;
  const PanelKernels<T>& kernels_;
  bool backward_ = false;
  std::int64_t count_ = 0;  // of queries
  float *rows_, *gradients_;
  T *queries_, *query_columns_, *grad_rows_, *grad_columns_, *first_, *second_, *halves_;
  const T* keys_ = nullptr;
  std::int64_t stride_ = 0;
};

}  // namespace ebb::attention
