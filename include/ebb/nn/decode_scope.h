// Calling a model on new tokens only, with the keys and values of earlier ones in a cache.
//
// While a DecodeScope exists, the functions below take their positions, keys and values from it;
// without one they are what training uses. A model whose attention, positions and output use them
// can generate: it needs no second forward pass.
#pragma once

#include <vector>

#include "ebb/graph.h"
#include "ebb/ops.h"
#include "ebb/variable.h"

namespace ebb::nn {

// What keys and values are stored in: the model's dtype, or 8 bits with a scale for each block of a
// head (see ebb/decode.h), on the CPU alone.
enum class CacheForm : std::uint8_t { model, int8 };

// Keys and values of all layers, as variables of a planned size. Layers are added while a model is
// first called in a DecodeScope; later calls find theirs by their order. Variables have no bytes
// until a program needs them.
class KeyValueCache {
 public:
  KeyValueCache(std::int64_t rows, std::int64_t tokens, CacheForm form = CacheForm::model)
      : rows_(rows), tokens_(tokens), form_(form) {}

  std::int64_t rows() const { return rows_; }      // sequences
  std::int64_t tokens() const { return tokens_; }  // of each sequence, at most
  CacheForm form() const { return form_; }
  Bytes bytes() const;  // of all layers so far

 private:
  friend class DecodeScope;
  struct Layer {
    Variable keys, values;              // (rows, heads, tokens, size)
    Variable key_scales, value_scales;  // of 8 bits: (rows, heads, tokens, blocks); or empty
  };
  std::int64_t rows_, tokens_;
  CacheForm form_;
  std::vector<Layer> layers_;
};

class DecodeScope {
 public:
  // Tokens of a call are (B, T). `positions`: int32 (B, T), negative for padding. `rows`: int32
  // (B), the row of the cache of each sequence. `wanted`: int32 (B), the token of each sequence,
  // counted over all B · T, whose successor is predicted; empty where T is 1.
  DecodeScope(KeyValueCache& cache, Tensor positions, Tensor rows, Tensor wanted = {});
  ~DecodeScope();
  DecodeScope(const DecodeScope&) = delete;
  DecodeScope& operator=(const DecodeScope&) = delete;

  static DecodeScope* current();  // null: none

  const Tensor& positions() const { return positions_; }
  const Tensor& wanted() const { return wanted_; }
  // For the next layer: writes its new keys and values to the cache and attends over the cache.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                std::int64_t window);
  int layers() const { return layers_; }  // that have attended so far
  // The cache with the new tokens: for the program's graph.
  const std::vector<Update>& updates() const { return updates_; }

 private:
  KeyValueCache& cache_;
  Tensor positions_, rows_, wanted_;
  int layers_ = 0;
  std::vector<Update> updates_;
  DecodeScope* outer_;
};

// Attention of tokens over tokens of the same sequence: q (B, H, T, D), k (B, Hkv, T, D), v (B,
// Hkv, T, Dv). In a DecodeScope it must be causal and without a mask, and `window` limits it: a
// token sees itself and at most `window` - 1 tokens before it (0: all before it). Outside a
// DecodeScope, the options' mask must express the window, so that all layers can share one mask.
Tensor self_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options, std::int64_t window = 0);
// int32 (B, T): the positions of the tokens of a call in a DecodeScope, 0 for padding; empty
// without one, where tokens have positions 0 to T - 1.
Tensor decode_positions();
// Rotary embedding of x (B, H, T, D) at the tokens' positions.
Tensor rotate(const Tensor& x, double base);
// Rows of a table (positions, width) for the positions of `ids` (B, T): what is added to token
// embeddings.
Tensor position_rows(const Tensor& table, const Tensor& ids);
// The hidden states (B, T, width) that logits are needed for: (B, 1, width) in a DecodeScope,
// otherwise all.
Tensor predicting_tokens(const Tensor& x);

}  // namespace ebb::nn
