#include "plan/totals.h"

#include "ops/transfer/transfer.h"
#include "plan/arena_layout.h"
#include "plan/lanes.h"

namespace ebb::planning {

void add_up(Plan& plan) {
  plan.persistent = {}, plan.at_peak = {}, plan.held = {}, plan.moved = {};
  plan.predicted_ms = plan.predicted_keep_all_ms = 0.0;
  const LivePeak live = live_peak(plan.buffers.rows(), static_cast<int>(plan.instructions.size()));
  plan.live_peak = live.bytes;
  plan.peak_instruction = live.instruction;
  for (const Buffer& buffer : plan.buffers) {
    const bool live_at_peak = buffer.first <= live.instruction && buffer.last >= live.instruction;
    if (plan.persists(buffer)) {
      const Bytes bytes = Storage::reservation(plan.device, buffer.size);
      plan.persistent += bytes;
      plan.at_peak[buffer.category] += bytes;
    } else if (buffer.in_arena() && live_at_peak) {
      plan.at_peak[buffer.category] += buffer.size;
    } else if (buffer.place.leaf) {
      plan.held[plan.tier_of(buffer)] += buffer.size;
    }
  }
  plan.peak = plan.arena() + plan.persistent;
  for (const Space& space : plan.spaces) plan.held[space.tier] += space.size;
  plan.held[Tier::device] = plan.peak;

  bool transfers = false;
  for (const Instruction& instruction : plan.instructions) {
    if (is_transfer(*instruction.op)) {
      transfers = true;
      Plan::Moved& moved = plan.moved[instruction.attributes.as<TransferAttributes>().tier];
      (instruction.op == &fetch_op() ? moved.fetched : moved.stored) +=
          instruction.outputs[0].type.bytes();
      continue;
    }
    plan.predicted_ms += instruction.predicted_ms;
    if (!instruction.recomputed) plan.predicted_keep_all_ms += instruction.predicted_ms;
  }
  if (transfers) plan.predicted_ms = makespan(plan);
}

}  // namespace ebb::planning
