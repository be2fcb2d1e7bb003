// Activations in fewer bits: what backward reads of norms, activation functions, attention and
// products is kept as 8-bit codes from forward to backward. This changes gradients, so it is done
// only if asked for (TrainOptions::activation_bits): the pass `code_activations` is in no list of
// passes by default.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/graph.h"
#include "ebb/passes.h"

namespace ebb {

inline constexpr std::string_view activation_codes_pass = "code_activations";
// Consecutive elements of a row with one float32 scale.
inline constexpr std::int64_t activation_block = 64;

// Throws a ValueError unless activations can be kept in this number of bits: 8.
void check_activation_bits(std::int64_t bits);

// `list` with the pass that keeps activations as codes.
PassList with_activation_codes(PassList list);

// What that pass of `list` does to a graph: forward's results that backward then does not read.
struct CodedActivations {
  struct Value {
    std::string path;  // of the module that makes it
    std::string op;
    TensorType type;
    Bytes codes;  // with scales; 0 for a value that is computed again
  };
  std::vector<Value> kept;   // as codes
  std::vector<Value> again;  // computed again in backward, from those codes

  bool any() const { return !kept.empty(); }
  Bytes whole() const;  // of all these values in their own dtypes
  Bytes codes() const;
};
CodedActivations coded_activations(const Graph& graph, const PassList& list);

}  // namespace ebb
