#include "report/lane_times.h"

#include <gtest/gtest.h>

namespace ebb::report {
namespace {

// A fetch of 3 ms beside a kernel of 2 ms; a second kernel of 1 ms waits for the fetch, and an
// update of 4 ms runs beside it.
TEST(LaneTimes, KernelsWaitForCopies) {
  Plan plan;
  const LaneId compute = plan.lanes.add({Lane::Kind::compute}),
               beside = plan.lanes.add({Lane::Kind::beside}),
               fetch = plan.lanes.add({Lane::Kind::fetch});
  const auto add = [&](LaneId lane, double ms, std::vector<InstructionId> waits) {
    Instruction instruction;
    instruction.lane = lane;
    instruction.predicted_ms = ms;
    instruction.waits = std::move(waits);
    return plan.instructions.add(instruction);
  };
  const InstructionId copy = add(fetch, 3.0, {});
  const InstructionId first = add(compute, 2.0, {});
  add(beside, 4.0, {first});
  add(compute, 1.0, {copy});
  const LaneTimes times = lane_times(plan, predicted_times(plan));
  EXPECT_EQ(times.start, (std::vector<double>{0.0, 0.0, 2.0, 6.0}));
  EXPECT_EQ(times.clock, (std::vector<double>{0.0, 0.0, 2.0, 6.0}));
  EXPECT_EQ(times.end, 7.0);
  // With other durations, the second kernel waits for the copy.
  const std::vector<double> slow{30.0, 2.0, 4.0, 1.0};
  EXPECT_EQ(lane_times(plan, slow).start.back(), 30.0);
  EXPECT_EQ(lane_times(plan, slow).end, 31.0);
}

TEST(LaneTimes, OneLaneIsOneAfterTheOther) {
  Plan plan;
  for (const double ms : {1.0, 2.0, 3.0}) {
    Instruction instruction;
    instruction.predicted_ms = ms;
    plan.instructions.add(instruction);
  }
  const LaneTimes times = lane_times(plan, predicted_times(plan));
  EXPECT_EQ(times.start, (std::vector<double>{0.0, 1.0, 3.0}));
  EXPECT_EQ(times.clock, times.start);
  EXPECT_EQ(times.end, 6.0);
}

}  // namespace
}  // namespace ebb::report
