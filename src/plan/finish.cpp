#include "plan/finish.h"

#include <algorithm>
#include <utility>

#include "core/backend.h"
#include "plan/arena_layout.h"
#include "plan/exchanges.h"
#include "plan/lanes.h"
#include "plan/totals.h"

namespace ebb::planning {
namespace {

// Lays out the arena. With several lanes, buffers may live longer, so that lanes need not wait for
// each other; if that takes more bytes than `limit` and than one lane takes, they do not. `enough`:
// as in lay_out.
Bytes lay_out_arena(Plan& plan, Bytes limit, Bytes enough) {
  if (plan.lanes.size() == 1) return lay_out(plan.buffers.rows());
  Table<Buffer> short_lived = plan.buffers;
  const int count = static_cast<int>(plan.instructions.size());
  stretch_lives(plan, std::max(limit, live_peak(plan.buffers.rows(), count).bytes));
  const Bytes size = lay_out(plan.buffers.rows(), arena_space, enough);
  if (size <= std::max(limit, enough)) return size;
  std::swap(plan.buffers, short_lived);
  const Bytes in_one_lane = lay_out(plan.buffers.rows(), arena_space, enough);
  if (size > in_one_lane) return in_one_lane;
  std::swap(plan.buffers, short_lived);
  return size;
}

}  // namespace

void finish(Plan& plan, const PlanOptions& options, Bytes limit, Bytes enough) {
  mark_transfers(plan);
  if (std::min(options.lanes, backend_of(plan.device).lanes()) > 1) mark_beside(plan);
  const Bytes size = lay_out_arena(plan, limit, enough);
  if (plan.lanes.size() > 1) order_lanes(plan);
  for (const SpaceId s : plan.spaces.ids()) {
    Space& space = plan.spaces[s];
    if (s == arena_space)
      space.size = Storage::reservation(plan.device, size, space.pages);
    else
      space.size = round_up(lay_out(plan.buffers.rows(), s), file_alignment);
  }
  add_up(plan);
  hide_exchanges(plan, options.rates);
}

}  // namespace ebb::planning
