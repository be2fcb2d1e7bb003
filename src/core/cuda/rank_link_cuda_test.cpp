#include <gtest/gtest.h>

#include "core/cuda/library.h"
#include "core/cuda/rank_link.h"
#include "ebb/dist/ranks.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(RankLink, ALibraryThatIsNotThereIsNamed) {
  expect_error([] { cuda::Library("NCCL, for several ranks,", {"libnccl-absent.so.2"}); },
               {"NCCL, for several ranks,", "could not be loaded", "libnccl-absent"});
}

// With or without a GPU: either NCCL is there and new enough, or the error says what is missing.
TEST(RankLink, NcclIsFoundOrMissed) {
  try {
    EXPECT_GE(cuda::require_nccl(), 21800);
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("NCCL"), std::string::npos) << error.what();
  }
}

TEST(RankLink, ThreadsOfOneProcessAreRefused) {
  const auto ranks = dist::thread_ranks(2);
  expect_error([&] { cuda::rank_link(ranks[0], device::cuda(0)); }, {"NCCL"});
}

}  // namespace
}  // namespace ebb::test
