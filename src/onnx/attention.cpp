#include "onnx/attention.h"

#include <fmt/core.h>

#include <limits>

namespace ebb::onnx {

Value split_heads(Builder& b, const Value& x, std::int64_t heads, std::int64_t size) {
  return b.transpose(b.reshape(x, {0, 0, heads, size}), {0, 2, 1, 3});
}

Value attend(Builder& b, const Value& q, const Value& k, const Value& v, const Heads& heads,
             const Visible& visible) {
  // Heads of queries that share keys are stacked along the tokens, (B, K, H / K · T, D): keys and
  // values are never repeated.
  const bool grouped = heads.queries != heads.keys;
  const auto scores_of = [&](const Value& x, std::int64_t count) {  // (B, count, ..., S)
    if (!grouped) return x;
    return b.node("Reshape", {x, b.node("Concat", {b.integers({0, count, -1}), visible.keys},
                                        {{"axis", std::int64_t{0}}})});
  };
  // Scaled before the product: scores of float16 would overflow sooner.
  Value queries = b.multiply(q, heads.scale);
  if (grouped) queries = b.reshape(queries, {0, heads.keys, -1, heads.size});
  const Value scores = scores_of(b.node("MatMul", {queries, b.transpose(k, {0, 1, 3, 2})}),
                                 heads.queries);  // (B, H, T, S)
  const Value hidden = b.scalar(std::numeric_limits<float>::lowest(), f32);
  const Value masked = b.node("Where", {visible.mask, b.in_float(scores), hidden}, {}, f32);
  const Value weights = b.node("Softmax", {masked}, {{"axis", std::int64_t{-1}}});
  Value y = b.node("MatMul", {scores_of(b.cast(weights, q.dtype), heads.keys), v});
  if (grouped) y = b.reshape(y, {0, heads.queries, -1, heads.size});
  return b.reshape(b.transpose(y, {0, 2, 1, 3}), {0, 0, heads.queries * heads.size});
}

Decoder::Decoder(Builder& b, std::int64_t layers, const Heads& heads, Cache cache)
    : heads_(heads), cache_(cache) {
  const bool cached = cache == Cache::yes;
  ids_ = b.input("input_ids", i64, {batch_axis, sequence_axis});
  const Value mask =
      b.input("attention_mask", i64, {batch_axis, cached ? total_axis : sequence_axis});
  for (std::int64_t i = 0; cached && i < layers; ++i) {
    const auto past = [&](const char* part) {
      return b.input(fmt::format("past_key_values.{}.{}", i, part), b.compute(),
                     {batch_axis, heads.keys, past_axis, heads.size});
    };
    Value keys = past("key"), values = past("value");
    past_.push_back({std::move(keys), std::move(values)});
  }

  const Builder::Module module(b, "inputs");
  const Value zero = b.integer(0), one = b.integer(1), first_axis = b.integers({0});
  visible_.keys = b.axis_size(mask, 1);
  const Value tokens = b.axis_size(ids_, 1), begin = b.subtract(visible_.keys, tokens);
  const auto number = [&](const Value& x) { return b.node("Squeeze", {x, first_axis}); };
  // A query at place begin + t sees keys up to its own place, if they are of real tokens.
  const Value end = number(visible_.keys);
  key_places_ = b.node("Range", {zero, end, one});
  query_places_ = b.unsqueeze(b.node("Range", {number(begin), end, one}), {1});
  const Value before = b.node("LessOrEqual", {key_places_, query_places_}, {}, b8);  // (T, S)
  const Value real = b.unsqueeze(b.cast(mask, b8), {1, 2});                          // (B, 1, 1, S)
  visible_.mask = b.node("And", {before, real});
  // Counted in float32, exact to 2^24 tokens: TensorRT's CumSum takes no whole numbers.
  const Value count = b.node("CumSum", {b.cast(mask, f32), one});  // (B, S)
  const Value all = b.node("Max", {b.add(count, -1.0), b.scalar(0.0, f32)});
  positions_ =
      b.cast(b.node("Slice", {all, begin, visible_.keys, b.integers({1})}), i64);  // (B, T)
}

Visible Decoder::visible_within(Builder& b, std::int64_t window) {
  if (const auto found = within_.find(window); found != within_.end()) return found->second;
  const Value distance = b.subtract(query_places_, key_places_);  // (T, S)
  const Value near = b.node("Less", {distance, b.integer(window)}, {}, b8);
  const Visible both{b.node("And", {visible_.mask, near}), visible_.keys};
  within_.emplace(window, both);
  return both;
}

Decoder::KeysAndValues Decoder::remember(Builder& b, std::int64_t layer, const KeysAndValues& now) {
  if (cache_ == Cache::no) return now;
  const KeysAndValues& past = past_[static_cast<std::size_t>(layer)];
  const auto joined = [&](const Value& old, const Value& added) {
    return b.node("Concat", {old, added}, {{"axis", std::int64_t{2}}});
  };
  Value keys = joined(past.keys, now.keys), values = joined(past.values, now.values);
  present_.push_back({std::move(keys), std::move(values)});
  return present_.back();
}

void Decoder::finish(Builder& b, const Value& logits, std::int64_t vocabulary) {
  b.output(logits, "logits", {batch_axis, sequence_axis, vocabulary});
  for (std::size_t i = 0; i < present_.size(); ++i) {
    const auto give = [&](const Value& value, const char* part) {
      b.output(value, fmt::format("present.{}.{}", i, part),
               {batch_axis, heads_.keys, total_axis, heads_.size});
    };
    give(present_[i].keys, "key");
    give(present_[i].values, "value");
  }
}

}  // namespace ebb::onnx
