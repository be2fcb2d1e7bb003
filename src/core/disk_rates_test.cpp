#include "core/disk_rates.h"

#include <gtest/gtest.h>

#include "core/offload_file.h"
#include "ebb/error.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

TEST(DiskRates, AreMeasuredAndLeaveNothing) {
  const TemporaryFolder folder;
  const DiskRates rates = measure_disk(folder.path(), 70_MiB + 1_B);
  // From a floppy disk's rate to a thousand times that of today's fastest disks.
  EXPECT_GT(rates.read, 1e4);
  EXPECT_LT(rates.read, 1e13);
  EXPECT_GT(rates.write, 1e4);
  EXPECT_LT(rates.write, 1e13);
  EXPECT_GT(rates.each_of_both, 1e4);
  EXPECT_LT(rates.each_of_both, 1e13);
  const OffloadFile file(folder.path(), 4_KiB);
  EXPECT_EQ(rates.direct, file.direct());
  EXPECT_EQ(rates.method, file.method());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DiskRates, ASmallFileIsEnough) {
  const TemporaryFolder folder;
  EXPECT_GT(measure_disk(folder.path(), 1_B).read, 0.0);
}

TEST(DiskRates, BadRequestsAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THROW(measure_disk(folder / "absent"), FileError);
  EXPECT_THROW(measure_disk(folder.path(), 0_B), ValueError);
}

}  // namespace
}  // namespace ebb::test
