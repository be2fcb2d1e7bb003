// Texts with some tokens masked, for models that predict them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

struct MaskingOptions {
  std::int64_t sequence = 128;        // T
  std::int32_t padding = 0;           // a token for the places after a text
  std::int32_t mask = 0;              // the token that hides another
  std::int64_t vocabulary = 0;        // random replacement tokens are below this
  std::vector<std::int32_t> special;  // tokens that are never chosen, such as [CLS]
  double share = 0.15;                // share of tokens to be predicted
  // Which tokens are hidden depends on the item and on this seed, and is always the same: for
  // tests. Without it, they change from epoch to epoch with the state of the loader.
  std::optional<std::uint64_t> fixed_seed;
};

// ids (B, T), targets (B, T), mask (B, T): true for the tokens of the text. Each token that is not
// special is chosen with the probability `share`; if a text has no chosen token, one is chosen. Of
// the chosen tokens 80 % become the mask token, 10 % any token, and 10 % stay as they are (BERT,
// section 3.1). Their targets are the original tokens; all others have the target -100.
class MaskedTokenDataset : public Dataset {
 public:
  // Every text has 1 to T tokens, and one that is not special.
  MaskedTokenDataset(std::vector<std::vector<std::int32_t>> texts, MaskingOptions options);

  std::int64_t size() const override { return static_cast<std::int64_t>(texts_.size()); }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

  std::int64_t tokens() const;                    // of all texts
  std::int64_t targets(std::int64_t item) const;  // only with a fixed seed

 private:
  // Writes the tokens of an item as they are shown, and their targets.
  void fill(std::int64_t item, RandomState state, std::span<std::int32_t> ids,
            std::span<std::int32_t> targets) const;

  std::vector<std::vector<std::int32_t>> texts_;
  MaskingOptions options_;
  std::vector<bool> special_;  // by token
};

}  // namespace ebb::data
