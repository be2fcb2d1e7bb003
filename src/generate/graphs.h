// The two programs of generation.
#pragma once

#include "ebb/decode.h"
#include "ebb/graph.h"
#include "ebb/models/causal_lm.h"
#include "ebb/nn/decode_scope.h"

namespace ebb::generate {

// What the device knows of each running sequence; one element per row of the cache.
struct GenerationState {
  Variable ids;        // int32: the last generated token, not yet in the cache
  Variable positions;  // int32: its place in the sequence; -1 for a row without a sequence
  Variable keys;       // int64: of sampling
  Variable first;      // int32 (1): the token that follows the prompt read last

  GenerationState(std::int64_t sequences, Device device);
};

// One token of every row: reads and advances `ids` and `positions`. No inputs, no outputs.
Graph decode_step(models::CausalLm& lm, nn::KeyValueCache& cache, const GenerationState& state,
                  const SampleOptions& sampling);

// A piece of a prompt of up to `chunk` tokens into one row, and `first`. Inputs: ids and positions
// (1, chunk), the row (1), the number of the piece's last token (1), the sequence's key (1).
enum PrefillInput : int { prompt_ids, prompt_positions, prompt_row, prompt_last, prompt_key };
Graph prefill_step(models::CausalLm& lm, nn::KeyValueCache& cache, const GenerationState& state,
                   std::int64_t chunk, const SampleOptions& sampling, Device device);

}  // namespace ebb::generate
