// Computing tensors again instead of keeping them from forward to backward.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/node.h"

namespace ebb {

// Which activations a plan frees after forward. Whatever is chosen, results keep every bit: an op
// run again on the same inputs gives the same outputs, random masks included.
struct Recompute {
  enum class Mode : std::uint8_t {
    marked,     // those that the model's code marked (see Checkpoint); unmarked ones are kept
    none,       // keep all, marks or not
    blocks,     // all inside every block (module of a list); what passes between blocks is kept
    sqrt,       // the same for √n groups of n blocks (Chen et al., 2016)
    segment,    // all but one in `segment` of forward's nodes
    selective,  // what cheap ops make (norms, activations, elementwise) from what is kept anyway
    greedy,     // one by one, the best ratio of bytes to time first, until the budget is kept
    automatic,  // the least predicted time that keeps the budget
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
  std::uint32_t keep_one_in = 0;  // of its nodes, in order, one in so many is kept; 0: none
};

// The marks of what is made in a new region: unchanged inside another one.
Marks in_region(Marks marks, const Checkpoint& checkpoint);

// While it lives, what this thread adds to the graph is one region to be computed again for
// backward. What the region hands on is kept. Inside another region it does nothing.
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
