#include "plan/finish.h"

#include <algorithm>

#include "core/backend.h"
#include "plan/arena_layout.h"
#include "plan/lanes.h"
#include "plan/totals.h"

namespace ebb {
namespace {

// Lays out the arena for several lanes, in no more bytes than `most`, or else `in_one_lane`.
Bytes lay_out_lanes(Plan& plan, Bytes limit, Bytes most, Bytes in_one_lane) {
  Table<Buffer> placed = plan.buffers;
  stretch_lives(plan, limit);
  Bytes size = lay_out(plan.buffers.rows());
  if (size > most) plan.buffers = std::move(placed), size = in_one_lane;
  return size;
}

}  // namespace

void finish(Plan& plan, const PlanOptions& options, Bytes limit) {
  mark_transfers(plan);
  Bytes size = lay_out(plan.buffers.rows());
  const int count = static_cast<int>(plan.instructions.size());
  if (std::min(options.lanes, backend_of(plan.device).lanes()) > 1) mark_beside(plan);
  if (plan.lanes.size() > 1) {
    const Bytes live = live_peak(plan.buffers.rows(), count).bytes;
    size = lay_out_lanes(plan, std::max(live, limit), std::max(size, limit), size);
    order_lanes(plan);
  }
  for (const SpaceId s : plan.spaces.ids()) {
    Space& space = plan.spaces[s];
    if (s == arena_space)
      space.size = Storage::reservation(plan.device, size, space.pages);
    else
      space.size = round_up(lay_out(plan.buffers.rows(), s), file_alignment);
  }
  add_up(plan);
}

}  // namespace ebb
