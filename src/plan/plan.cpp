#include "ebb/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "ebb/storage.h"
#include "plan/arena_layout.h"
#include "plan/lower.h"

namespace ebb {

Bytes CategoryBytes::total() const {
  Bytes sum;
  for (Bytes value : values) sum += value;
  return sum;
}

Plan make_plan(const Graph& graph, const PlanOptions& options) {
  Plan plan = lower(graph, options);
  plan.arena = Storage::reservation(lay_out(plan.buffers));
  const LivePeak live = live_peak(plan.buffers, static_cast<int>(plan.instructions.size()));
  plan.live_peak = live.bytes;
  plan.peak_instruction = live.instruction;
  for (const Buffer& buffer : plan.buffers) {
    const bool live_at_peak = buffer.first <= live.instruction && buffer.last >= live.instruction;
    if (!buffer.in_arena()) plan.persistent += Storage::reservation(buffer.size);
    if (!buffer.in_arena())
      plan.at_peak[buffer.category] += Storage::reservation(buffer.size);
    else if (live_at_peak)
      plan.at_peak[buffer.category] += buffer.size;
  }
  plan.peak = plan.arena + plan.persistent;
  return plan;
}

std::ostream& operator<<(std::ostream& out, const Plan& plan) { return out << to_string(plan); }

std::string to_string(const Plan& plan) {
  std::string text =
      fmt::format("peak {} in {} instructions\n", to_string(plan.peak), plan.instructions.size());
  for (int c = 0; c < category_count; ++c)
    text += fmt::format("  {:<12} {:>12}\n", name(static_cast<Category>(c)),
                        to_string(plan.at_peak[static_cast<Category>(c)]));
  const double fragmentation =
      plan.live_peak.count > 0
          ? static_cast<double>(plan.arena.count) / static_cast<double>(plan.live_peak.count)
          : 1.0;
  text += fmt::format("  arena {} for {} of live buffers: {:.4f} of the least\n",
                      to_string(plan.arena), to_string(plan.live_peak), fragmentation);
  return text;
}

}  // namespace ebb
