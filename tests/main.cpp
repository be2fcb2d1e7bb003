// Runs the tests of one binary and, at the end, expects that no node and no byte of a storage is
// left.
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include "ebb/node.h"
#include "ebb/storage.h"
#include "ebb/threads.h"
#include "support/op_check.h"
#include "support/random_graph.h"

namespace {

class NothingStaysAlive : public testing::Environment {
 public:
  void TearDown() override {
    EXPECT_EQ(ebb::live_nodes(), 0) << "nodes alive after the last test";
    EXPECT_EQ(ebb::live_bytes(), ebb::Bytes{0}) << "bytes alive after the last test";
  }
};

// The tests whose checks run on a CUDA device: those of ops, and of CUDA itself.
std::string cuda_tests() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string filter = "RandomGraph.OnCuda";
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const std::string_view file = suite.GetTestInfo(k)->file();
      if (file.find("src/ops/") != file.npos || file.find("/cuda_") != file.npos)
        filter += std::string(":") + suite.name() + "." + suite.GetTestInfo(k)->name();
    }
  }
  return filter;
}

// Options besides GoogleTest's own. False if one is unknown.
bool read_option(std::string_view option) {
  constexpr std::string_view graphs = "--random-graphs=";
  if (option == "--only-cuda") {
    ebb::test::checks() = ebb::test::Checks::cuda;
    if (GTEST_FLAG_GET(filter) == "*") GTEST_FLAG_SET(filter, cuda_tests());
    return true;
  }
  if (option.substr(0, graphs.size()) != graphs) return false;
  option.remove_prefix(graphs.size());
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(option.begin(), option.end(), count);
  if (error != std::errc{} || end != option.end()) return false;
  ebb::test::set_graphs_to_try(count);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i)
    if (!read_option(argv[i])) {
      std::cerr << "ebb_tests: " << argv[i]
                << " is none of --only-cuda, --random-graphs=N and GoogleTest's options\n";
      return 2;
    }
#ifdef __SANITIZE_THREAD__
  ebb::set_threads(std::max(2, ebb::threads()));  // one thread alone would hide errors
#endif
  testing::AddGlobalTestEnvironment(new NothingStaysAlive);  // GoogleTest owns it
  return RUN_ALL_TESTS();
}
