// Runs the tests of one binary and, at the end, expects every node and byte to be gone.
#include <gtest/gtest.h>

#include "ebb/node.h"
#include "ebb/storage.h"

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
  testing::AddGlobalTestEnvironment(new NothingStaysAlive);  // GoogleTest owns it
  return RUN_ALL_TESTS();
}
