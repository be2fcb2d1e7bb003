// Products of a block of queries with tiles of keys and values, by vectors: a worker's part of
// attention on the CPU. Half types are widened, tile by tile.
#pragma once

#include "ops/attention/tiles.h"

namespace ebb::attention {

enum class Direction { forward, backward };

template <class T>
class VectorProducts {
  using C = Compute<T>;
  using Order = simd::Order;
  using Store = simd::Store;
  static constexpr int width = lanes<C>;

 public:
  // Queries are multiplied by the scale when they are taken, so that dk needs no factor.
  static constexpr bool scales_queries = true;
  // dk and dv may be accumulated in the results.
  static constexpr bool exact = std::is_same_v<T, C>;

  struct Scratch {
    Bytes rows, queries, gradients, grad_columns, keys, values;

    Scratch(const Problem& p, Direction direction, ScratchLayout& layout) {
      const std::int64_t size = simd::padded<C>(p.size), value = simd::padded<C>(p.value_size);
      rows = layout.add<C>(width * std::max(size, value));
      queries = layout.add<C>(size * width);
      const bool backward = direction == Direction::backward;
      if (backward) gradients = layout.add<C>(width * value);
      if (backward) grad_columns = layout.add<C>(value * width);
      if (exact) return;
      keys = layout.add<C>(tile_keys * (backward ? p.size : std::max(p.size, p.value_size)));
      values = backward ? layout.add<C>(tile_keys * p.value_size) : keys;
    }
  };

  VectorProducts(const Problem& p, const Scratch& scratch, std::byte* areas)
      : p_(p), size_(simd::padded<C>(p.size)), value_size_(simd::padded<C>(p.value_size)) {
    const auto area = [&](Bytes at) { return reinterpret_cast<C*>(areas + at.count); };
    rows_ = area(scratch.rows), queries_ = area(scratch.queries);
    gradients_ = area(scratch.gradients), grad_columns_ = area(scratch.grad_columns);
    keys_ = area(scratch.keys), values_ = area(scratch.values);
  }

  // Free before queries are taken, and after the last product with them.
  C* rows() const { return rows_; }
  // The rows of gradients that were taken, padded.
  const C* gradients() const { return gradients_; }

  // Up to `width` rows of queries, or of gradients of the results, `stride` apart.
  void take_queries(const T* from, std::int64_t stride, std::int64_t count) {
    load_rows(from, stride, count, p_.size, static_cast<C>(p_.scale), rows_);
    simd::transpose(rows_, width, size_, queries_);
    count_ = count;
  }
  void take_gradients(const T* from, std::int64_t stride, std::int64_t count) {
    load_rows(from, stride, count, p_.value_size, C(1), gradients_);
    simd::transpose(gradients_, width, value_size_, grad_columns_);
  }

  // out (keys, width) = keys · queriesᵀ, scaled.
  void scores(const T* keys, std::int64_t stride, std::int64_t count, C* out) {
    tile_ = load_keys(keys, stride, count, p_.size, keys_);
    simd::product<Order::rows>(tile_, count, p_.size, queries_, width, out, width, width,
                               Store::overwrite);
  }
  // out (keys, width) = values · gradientsᵀ.
  void value_scores(const T* values, std::int64_t stride, std::int64_t count, C* out) {
    simd::product<Order::rows>(load_keys(values, stride, count, p_.value_size, values_), count,
                               p_.value_size, grad_columns_, width, out, width, width,
                               Store::overwrite);
  }
  // result (value size, width) += valuesᵀ · weights.
  void add_values(const T* values, std::int64_t stride, std::int64_t count, const C* weights,
                  C* result) {
    simd::product<Order::columns>(load_keys(values, stride, count, p_.value_size, values_),
                                  p_.value_size, count, weights, width, result, width, width,
                                  Store::add);
  }

  // dv (keys, value size) += weights · gradients.
  void add_to_dv(std::int64_t count, const C* weights, C* dv, std::int64_t row) {
    simd::product<Order::rows>({weights, width}, count, count_, gradients_, value_size_, dv, row,
                               value_size_, Store::add);
  }
  // dk (keys, size) += dscores · queries, and dq (size, width) += keysᵀ · dscores with the keys
  // whose scores were computed last.
  void add_to_dk_dq(std::int64_t count, const C* dscores, C* dk, std::int64_t row, C* dq) {
    simd::product<Order::rows>({dscores, width}, count, count_, rows_, size_, dk, row, size_,
                               Store::add);
    simd::product<Order::columns>(tile_, p_.size, count, dscores, width, dq, width, width,
                                  Store::add);
  }

 private:
  const Problem& p_;
  std::int64_t size_, value_size_;  // padded
  std::int64_t count_ = 0;          // of queries
  C *rows_, *queries_, *gradients_, *grad_columns_, *keys_, *values_;
  simd::Factor<C> tile_{};
};

}  // namespace ebb::attention
