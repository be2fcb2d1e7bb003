// Attention as ONNX nodes, and what the attention layers of a model share: a mask of visible keys
// for every query, the positions of tokens, and the cache.
//
// Axes: B rows of a batch, T tokens that are fed, S tokens that are seen (T and those of the
// cache), H heads of queries, K heads of keys and values, D features of a head.
#pragma once

#include <map>

#include "ebb/onnx/export.h"
#include "onnx/builder.h"

namespace ebb::onnx {

// Names of axes, those that optimum and onnxruntime-genai use.
inline constexpr const char *batch_axis = "batch_size", *sequence_axis = "sequence_length",
                            *past_axis = "past_sequence_length",
                            *total_axis = "total_sequence_length";

struct Heads {
  std::int64_t queries = 1, keys = 1, size = 1;  // H, K, D
  double scale = 1.0;                            // of the scores
};

// Which keys are seen.
struct Visible {
  Value mask;  // bool, (B, 1, T or 1, S)
  Value keys;  // S, as a vector of one number
};

Value split_heads(Builder& b, const Value& x, std::int64_t heads,
                  std::int64_t size);  // (B, H, T, D)
// q (B, H, T, D), k and v (B, K, S, D) → (B, T, H · D). A query that sees no key averages all
// values, as in transformers.
Value attend(Builder& b, const Value& q, const Value& k, const Value& v, const Heads& heads,
             const Visible& visible);

// Inputs of a model that predicts the next token, and its cache.
class Decoder {
 public:
  // Adds the inputs: input_ids and attention_mask, and for every layer of a cache
  // past_key_values.N.key and .value.
  Decoder(Builder& b, std::int64_t layers, const Heads& heads, Cache cache);

  const Value& ids() const { return ids_; }              // int64, (B, T)
  const Value& positions() const { return positions_; }  // int64, (B, T): real tokens before each
  const Visible& visible() const { return visible_; }
  // A window also hides keys: a token sees only the last `window` of the visible ones, itself
  // included.
  Visible visible_within(Builder& b, std::int64_t window);

  // A layer's keys and values (B, K, T, D), appended to those of the cache: (B, K, S, D).
  struct KeysAndValues {
    Value keys, values;
  };
  KeysAndValues remember(Builder& b, std::int64_t layer, const KeysAndValues& now);
  // Adds the outputs: logits (B, T, vocabulary), and present.N.key and .value.
  void finish(Builder& b, const Value& logits, std::int64_t vocabulary);

 private:
  Heads heads_;
  Cache cache_;
  Value ids_, positions_;
  Visible visible_;
  Value key_places_, query_places_;         // int64 (S) and (T, 1): places in the sequence
  std::map<std::int64_t, Visible> within_;  // by their windows
  std::vector<KeysAndValues> past_, present_;
};

}  // namespace ebb::onnx
