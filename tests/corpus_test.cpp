// Every reader over the inputs that fuzzing found worth keeping (tests/fuzz/corpus), and over
// inputs that it must accept.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/error.h"
#include "fuzz/readers.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

class Corpus : public ::testing::TestWithParam<fuzz::Reader> {};

TEST_P(Corpus, IsReadOrRefused) {
  const TemporaryFolder folder;
  std::vector<fs::path> inputs;
  for (const auto& entry : fs::directory_iterator(fs::path(EBB_CORPUS_FOLDER) / GetParam().name))
    inputs.push_back(entry.path());
  EXPECT_FALSE(inputs.empty());
  std::sort(inputs.begin(), inputs.end());
  for (const fs::path& input : inputs) {
    SCOPED_TRACE(input.filename().string());
    try {
      GetParam().read(fuzz::file_bytes(input), folder.path());
    } catch (const Error&) {
    }
  }
}

TEST_P(Corpus, GoodInputsAreAccepted) {
  const TemporaryFolder folder;
  const auto all = fuzz::good_inputs(folder.path());
  for (const std::string& input : all.at(GetParam().name))
    EXPECT_NO_THROW(GetParam().read(input, folder.path()));
}

INSTANTIATE_TEST_SUITE_P(Readers, Corpus, ::testing::ValuesIn(fuzz::readers),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ebb::test
