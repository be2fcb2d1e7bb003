// Every op must have been through the checks of op_check.h in some sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/op_check.h"

namespace ebb::test {
namespace {

// Ops that cannot be in a sample, and the reason.
const std::map<std::string_view, std::string_view> exempt{
    {"input", "samples are evaluated, so their inputs are constants"},
    {"fused", "made by a pass and never by users; check_repetition compares it with its parts"},
    {"fused_reduce", "the same"},
    {"all_reduce", "it is for several ranks and has no kernel for CUDA; CollectiveRanks tests it"},
    {"reduce_scatter", "the same"},
    {"all_gather", "the same"},
    {"own_range", "the same"},
};

// Runs after the last test, when every suite has run. If a filter leaves suites out, nothing is
// checked.
class EveryOpIsChecked : public testing::Environment {
 public:
  void TearDown() override {
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    if (all.test_to_run_count() != all.total_test_count() || all.disabled_test_count() > 0) return;
    for (const Op* op : all_ops()) {
      const bool checked = std::count(checked_ops().begin(), checked_ops().end(), op) > 0;
      EXPECT_NE(checked, exempt.contains(op->name()))
          << "op " << op->name()
          << (checked ? " is exempt from checks, but has one" : " appears in no sample");
    }
  }
};

// GoogleTest owns it.
[[maybe_unused]] const testing::Environment* const registered =
    testing::AddGlobalTestEnvironment(new EveryOpIsChecked);

}  // namespace
}  // namespace ebb::test
