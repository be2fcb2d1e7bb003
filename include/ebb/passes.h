// The passes that turn a traced graph into one that can be planned. Each rewrites a whole graph.
// They are a list by name: it can be printed, shortened and put in another order.
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
  rewrite,  // replaces ops by others; reads and leaves any graph
  layout,   // inserts copies: from here on, every kernel can read its inputs as they lie
  group,    // joins kernels whose inputs have their final layout
};

// Whether a graph gives the same bits with a pass and without it.
enum class PassBits : std::uint8_t {
  same,         // on every device
  same_on_cpu,  // on a GPU, sums are rounded in other places or added in another order
};

struct Pass {
  std::string_view name;
  std::string_view summary;  // one line
  PassPhase phase = PassPhase::rewrite;
  PassBits bits = PassBits::same;
  std::optional<Device::Kind> only_on = {};  // elsewhere it changes nothing
  bool required = false;                     // no program can be made without it
  // It can raise the peak. A budget that is not kept with such passes is tried without them.
  bool raises_peak = false;
  Graph (*run)(const Graph&) = nullptr;
};

// Every pass, in the order in which they run unless told otherwise.
std::span<const Pass> all_passes();

// Names of passes in the order in which they run.
using PassList = std::vector<std::string>;
PassList all_pass_names();
// Only those that no program can be made without: every other op runs as it was traced.
PassList required_passes();
// `list` without `names`. A name that no pass has, and one of a required pass, is a ValueError.
PassList passes_without(PassList list, const std::vector<std::string>& names);

// What one pass of a list did to a graph.
struct PassEffect {
  const Pass* pass = nullptr;
  bool ran = false;  // whether the list has it
  std::size_t nodes_before = 0, nodes_after = 0;
};

// Runs a list of passes. A name that is unknown or given twice, a required pass that is missing,
// and a pass before one of an earlier phase are ValueErrors. `effects` is appended to, if given:
// one row for each pass that ran, then those of `all_passes()` that did not.
Graph run_passes(const Graph& graph, const PassList& list,
                 std::vector<PassEffect>* effects = nullptr);

}  // namespace ebb
