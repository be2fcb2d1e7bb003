// Starts copies to the device so early that they have ended when their result is read.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "plan/lower.h"
#include "plan/schedule.h"

namespace ebb::planning {

// The order with its fetches moved forward: each by the time that it and the fetches after it take,
// as far as at most `limit` bytes are live at once, or the plan's peak if that is more. Fetches
// that are needed first get the memory first. `lowered` is the plan of `order`.
Order start_early(const Lowered& lowered, const Order& order, Bytes limit);

// The same as instructions of `lowered`, in their new order.
std::vector<InstructionId> early_order(const Lowered& lowered, Bytes limit);

// Where each of `before` is in `after`.
std::vector<InstructionId> positions_of(std::span<const std::shared_ptr<Node>> before,
                                        std::span<const std::shared_ptr<Node>> after);

}  // namespace ebb::planning
