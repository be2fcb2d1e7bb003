// The state of running sequences: what the device holds, and its copy on the host. Writing and
// reading it allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/program.h"
#include "generate/graphs.h"

namespace ebb::generate {

class Rows {
 public:
  // The variables must have values.
  Rows(const GenerationState& state, std::int64_t chunk);

  // Feeds `prefill` the tokens of a prompt from position `first` on, for a row.
  void feed_prompt(Program& prefill, std::span<const std::int32_t> tokens, std::int64_t first,
                   std::size_t row, std::int64_t key);
  std::int32_t first_id() const;  // that `prefill` has sampled

  // From now on the row has a sequence whose last token `id` is at `position`.
  void start(std::size_t row, std::int32_t id, std::int32_t position, std::int64_t key);
  void stop(std::size_t row);
  void clear();  // stops all

  void send();     // before a step of `decode`: the device learns of rows that changed
  void receive();  // after it: reads the new ids
  std::int32_t id(std::size_t row) const { return ids_[row]; }

 private:
  GenerationState state_;
  std::vector<std::int32_t> ids_, positions_;
  std::vector<std::int64_t> keys_;
  bool changed_ = true;
  // Constants whose bytes are rewritten for each piece of a prompt.
  std::vector<std::int32_t> token_values_, position_values_;
  Tensor tokens_, places_, row_, last_, key_;
};

}  // namespace ebb::generate
