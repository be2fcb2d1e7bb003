#include "ebb/nn/decode_scope.h"

#include <fmt/core.h>

#include <utility>

#include "ebb/decode.h"
#include "ebb/error.h"

namespace ebb::nn {
namespace {

thread_local DecodeScope* current_decode = nullptr;

Variable cache_variable(const KeyValueCache& cache, const Tensor& fresh, std::int64_t size,
                        DType dtype) {
  const Shape shape{cache.rows(), fresh.shape()[1], cache.tokens(), size};
  return {zeros(shape, dtype, fresh.device()), Category::activations};
}
Variable values_variable(const KeyValueCache& cache, const Tensor& fresh) {
  return cache_variable(cache, fresh, fresh.shape()[3],
                        cache.form() == CacheForm::int8 ? u8 : fresh.dtype());
}
Variable scales_variable(const KeyValueCache& cache, const Tensor& fresh) {
  if (cache.form() != CacheForm::int8) return {};
  return cache_variable(cache, fresh, int8_cache_blocks(fresh.shape()[3]), f32);
}

}  // namespace

Bytes KeyValueCache::bytes() const {
  Bytes total;
  for (const Layer& layer : layers_)
    for (const Variable* part :
         {&layer.keys, &layer.values, &layer.key_scales, &layer.value_scales})
      if (*part) total += part->type().bytes();
  return total;
}

DecodeScope::DecodeScope(KeyValueCache& cache, Tensor positions, Tensor rows, Tensor wanted)
    : cache_(cache),
      positions_(std::move(positions)),
      rows_(std::move(rows)),
      wanted_(std::move(wanted)),
      outer_(std::exchange(current_decode, this)) {}
DecodeScope::~DecodeScope() { current_decode = outer_; }
DecodeScope* DecodeScope::current() { return current_decode; }

Tensor DecodeScope::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionOptions& options, std::int64_t window) {
  if (!options.causal || options.mask || options.dropout > 0.0)
    throw ValueError(
        fmt::format("[generate] attention at \"{}\" must be causal, without a mask and without "
                    "dropout",
                    q.path()));
  const auto index = static_cast<std::size_t>(layers_++);
  if (index == cache_.layers_.size())
    cache_.layers_.push_back({values_variable(cache_, k), values_variable(cache_, v),
                              scales_variable(cache_, k), scales_variable(cache_, v)});
  const KeyValueCache::Layer& layer = cache_.layers_[index];
  const CachedAttentionOptions how{.scale = options.scale, .window = window};
  if (cache_.form() == CacheForm::int8) {
    const Int8KeysValues now = cache_write(
        Int8KeysValues{{layer.keys, layer.key_scales}, {layer.values, layer.value_scales}}, k, v,
        positions_, rows_);
    updates_.push_back({layer.keys, now.keys.codes});
    updates_.push_back({layer.key_scales, now.keys.scales});
    updates_.push_back({layer.values, now.values.codes});
    updates_.push_back({layer.value_scales, now.values.scales});
    return cached_attention(q, now, positions_, rows_, how);
  }
  const CachedKeysValues now = cache_write(layer.keys, layer.values, k, v, positions_, rows_);
  updates_.push_back({layer.keys, now.keys});
  updates_.push_back({layer.values, now.values});
  return cached_attention(q, now.keys, now.values, positions_, rows_, how);
}

Tensor self_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options, std::int64_t window) {
  if (DecodeScope* scope = DecodeScope::current()) return scope->attend(q, k, v, options, window);
  return scaled_dot_product_attention(q, k, v, options);
}

Tensor decode_positions() {
  const DecodeScope* scope = DecodeScope::current();
  if (!scope) return {};
  return maximum(scope->positions(), scalar_like(scope->positions(), 0.0));
}

Tensor rotate(const Tensor& x, double base) {
  if (DecodeScope* scope = DecodeScope::current()) return rotary_at(x, scope->positions(), base);
  return rotary(x, base);
}

Tensor position_rows(const Tensor& table, const Tensor& ids) {
  if (const Tensor positions = decode_positions()) return embedding(table, positions);
  return slice(table, 0, 0, ids.shape().back());
}

Tensor predicting_tokens(const Tensor& x) {
  const DecodeScope* scope = DecodeScope::current();
  if (!scope || !scope->wanted()) return x;
  const std::int64_t width = x.shape().back();
  return unsqueeze(embedding(reshape(x, {-1, width}), scope->wanted()), 1);
}

}  // namespace ebb::nn
