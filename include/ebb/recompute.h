// Recomputation (activation checkpointing) instead of keeping tensors from forward to backward.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/node.h"

namespace ebb {

// Which activations a plan frees after forward. The choice changes no bit of the results: an op
// that runs again on the same inputs gives the same outputs, random masks included.
struct Recompute {
  enum class Mode : std::uint8_t {
    marked,     // those marked in the model's code (see Checkpoint)
    none,       // no activations: all are kept, also marked ones
    blocks,     // all inside a block (element of a List); tensors that pass between blocks are kept
    sqrt,       // the same, with n blocks joined into √n groups (Chen et al., 2016)
    segment,    // the nodes inside blocks (without blocks: of forward) except every `segment`-th
    selective,  // outputs of cheap ops (norms, activations, elementwise) whose inputs are kept
                // anyway
    greedy,     // one by one, best ratio of bytes to time first, until the budget is met
    automatic,  // searches for the least predicted time within the budget
  };
  Mode mode = Mode::marked;
  std::int64_t segment = 0;  // with Mode::segment; 0 keeps no node

  // Reads "none", "marked", "blocks", "sqrt", "segment=4", "segment=all", "selective", "greedy",
  // "auto".
  static Recompute parse(std::string_view text);
};
std::string to_string(const Recompute& recompute);

// How a marked region is treated.
struct Checkpoint {
  std::uint32_t keep_one_in = 0;  // keeps every n-th node; 0: none
};

// The marks of nodes in a new region; unchanged inside another region.
Marks in_region(Marks marks, const Checkpoint& checkpoint);

// While it exists, the nodes that this thread adds form one region that is recomputed for backward.
// Outputs that leave the region are kept. Inside another region it does nothing.
class CheckpointScope {
 public:
  explicit CheckpointScope(const Checkpoint& checkpoint = {});

 private:
  MarkScope marks_;
};

// Calls `function` as such a region: y = checkpoint([&] { return block(x); });
template <class Function>
auto checkpoint(Function&& function, const Checkpoint& options = {}) {
  const CheckpointScope scope(options);
  return std::forward<Function>(function)();
}

}  // namespace ebb
