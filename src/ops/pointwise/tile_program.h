// A pointwise program on the CPU, tile by tile: every function processes a run of elements that
// stays in the first-level cache, so a chain of any length reads each input once. The result is
// written once, or left in a tile for the caller. Where a function alone reads the result of
// another, both may become one step, which keeps that result in vector registers (chain.h).
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "ops/pointwise/chain.h"
#include "ops/pointwise/convert.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {

struct TileProgram {
  // Elements. Three inputs, a few intermediate results and the output fit in the first-level cache,
  // with room for what the prefetcher brings in.
  static constexpr std::int64_t tile = 512;
  static constexpr std::int64_t grain = 32 * tile;  // elements a thread takes at least
  static constexpr std::size_t longest_chain = 32;  // steps

  enum class Result { written, kept };

  // How one input is loaded into a tile.
  struct Source {
    enum class Kind { direct, scalar, strided } kind = Kind::direct;
    std::int64_t element_size = 0;
    GatherFunction gather = nullptr;
    Shape shape;      // of the output, neighbouring axes joined where this input allows
    Strides strides;  // of this input, 0 along broadcast axes
  };

  // One function to run. Operands and results are value numbers: inputs first, then steps.
  struct Step {
    const PointwiseRow* row = nullptr;
    TileFunction function = nullptr;
    std::vector<int> operands;
    Immediates numbers;
    void (*round)(float*, std::int64_t) = nullptr;
    bool constant = false;   // the same for all tiles: computed once per thread
    bool in_floats = false;  // its operands are float32, the condition of `where` aside
    // Where a step is one of a chain: its link, and which operand it takes from the step before.
    // The last one has the steps of the chain, itself included, and their links; the others are
    // joined to it and do not run by themselves.
    chain::Link link;
    std::size_t handed = 0;
    std::vector<int> chain;
    std::vector<chain::Link> links;
    bool joined = false;
    std::vector<int> reads;    // values from memory, in the order of the links; else the operands
    std::vector<int> streams;  // inputs among them that are read in place
  };

  std::vector<Source> sources;
  std::vector<Step> steps;
  std::vector<int> registers;  // of each value; -1: read or written in place
  int register_count = 0;
  StoreFunction store = nullptr;  // of results that are not written as they are computed
  Result result = Result::written;
  std::int64_t elements = 0, out_size = 0;
  std::int64_t register_bytes = 0;  // a tile, or all elements if fewer, of the widest type in use
  int workers = 1;

  TileProgram(const KernelRequest& request, const FusedAttributes& fused, Result result);

  // The registers of all workers, which lie at the beginning of a kernel's workspace.
  Bytes workspace() const {
    return {static_cast<std::int64_t>(workers) * register_count * register_bytes};
  }

 private:
  void join_chains();
  void assign_registers();
  void bind_chain(Step& last) const;
};

// Runs a program on one thread's share of the elements.
class TileWorker {
 public:
  TileWorker(const TileProgram& program, const KernelArgs& args, int index);

  // Writes elements [begin, end) of the output.
  void write(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += TileProgram::tile)
      run_tile(i, std::min(TileProgram::tile, end - i));
  }

  // Elements [begin, begin + count) of a result that is kept, a tile at most, as they are in tiles.
  // Valid until the next call.
  const void* evaluate(std::int64_t begin, std::int64_t count) {
    run_tile(begin, count);
    return slot(p_.registers.size() - 1);
  }

 private:
  std::int64_t span() const { return std::min(TileProgram::tile, p_.elements); }
  std::byte* slot(std::size_t value) const {
    return registers_ + p_.registers[value] * p_.register_bytes;
  }
  void run_tile(std::int64_t begin, std::int64_t count);
  void step(std::size_t index, std::int64_t begin, std::int64_t count, std::byte* out);
  void chain(const TileProgram::Step& last, std::int64_t count, float* out) const;
  void chain_rest(const std::vector<int>& steps, std::int64_t at, std::int64_t count,
                  float* out) const;
  const std::byte* value(std::size_t index) const {
    if (p_.registers[index] >= 0) return slot(index);
    return args_.inputs[index] + begin_ * p_.sources[index].element_size;  // direct
  }

  // The same as float32, from element `at` of the tile on.
  const float* floats(int index, std::int64_t at = 0) const {
    return reinterpret_cast<const float*>(value(static_cast<std::size_t>(index))) + at;
  }

  const TileProgram& p_;
  const KernelArgs& args_;
  std::byte* registers_;
  std::int64_t begin_ = 0;
};

}  // namespace ebb
