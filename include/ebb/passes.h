// The passes that turn a traced graph into one that can be planned. Each rewrites a whole graph.
// Callers choose them by a list of names, which can be printed, shortened and reordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/device.h"
#include "ebb/graph.h"

namespace ebb {

// The phases of a list of passes. A pass never runs before one of an earlier phase.
enum class PassPhase : std::uint8_t {
  rewrite,  // replaces ops by others; takes any graph and may return any graph
  layout,   // inserts copies: afterwards every kernel can read the layouts of its inputs
  group,    // merges calls whose inputs have their final layout
};

// Whether a graph gives bit-identical results with and without a pass.
enum class PassBits : std::uint8_t {
  same,         // on every device
  same_on_cpu,  // on a GPU, sums are rounded elsewhere or added in another order
};

struct Pass {
  std::string_view name;
  std::string_view summary;  // one line
  PassPhase phase = PassPhase::rewrite;
  PassBits bits = PassBits::same;
  std::optional<Device::Kind> only_on = {};  // on other devices it changes nothing
  bool required = false;                     // no program can be made without it
  // It can raise peak memory. A budget that no plan keeps is tried again without such passes.
  bool raises_peak = false;
  Graph (*run)(const Graph&) = nullptr;
};

// Every pass that runs by default, in the default order.
std::span<const Pass> all_passes();

// Names of passes in the order in which they run.
using PassList = std::vector<std::string>;
PassList all_pass_names();
// Only the required passes: apart from inserted copies, ops run as they were traced.
PassList required_passes();
// `list` without `names`. The name of an unknown or of a required pass is a ValueError.
PassList passes_without(PassList list, const std::vector<std::string>& names);

// What one pass of a list did to a graph.
struct PassEffect {
  const Pass* pass = nullptr;
  bool ran = false;  // whether the list has it
  std::size_t nodes_before = 0, nodes_after = 0;
};

// Runs a list of passes. Throws a ValueError for a name that is unknown or given twice, for a
// missing required pass, and for a pass that stands before one of an earlier phase. If `effects` is
// given, one row is appended for each pass that ran, then one for each pass of `all_passes()` that
// did not.
Graph run_passes(const Graph& graph, const PassList& list,
                 std::vector<PassEffect>* effects = nullptr);

}  // namespace ebb
