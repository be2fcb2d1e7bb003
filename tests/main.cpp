// Runs the tests of one binary and, at the end, expects every node and byte to be gone.
#include <gtest/gtest.h>

#include <string_view>

#include "ebb/node.h"
#include "ebb/storage.h"
#include "support/op_check.h"

namespace {

class NothingStaysAlive : public testing::Environment {
 public:
  void TearDown() override {
    EXPECT_EQ(ebb::live_nodes(), 0) << "nodes alive after the last test";
    EXPECT_EQ(ebb::live_bytes(), ebb::Bytes{0}) << "bytes alive after the last test";
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--only-cuda") ebb::test::checks() = ebb::test::Checks::cuda;
  testing::AddGlobalTestEnvironment(new NothingStaysAlive);  // GoogleTest owns it
  return RUN_ALL_TESTS();
}
