// Code in the documentation is taken from the examples, which the tests build and run.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "ebb/io/device_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const fs::path root = EBB_SOURCE_FOLDER;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The text without its blocks of code.
std::string prose(std::string text) {
  for (std::size_t at = text.find("```"); at != std::string::npos; at = text.find("```")) {
    const std::size_t end = text.find("```", at + 3);
    text.erase(at, end == std::string::npos ? end : end + 3 - at);
  }
  return text;
}

TEST(Docs, ExamplesAreThoseThatRun) {
  int found = 0;
  std::vector<fs::path> pages{root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const fs::path& page : pages) {
    const std::string text = read(page), open = "```cpp\n// examples/";
    for (std::size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
      const std::size_t begin = at + 7, end = text.find("```", begin);
      const std::string code = text.substr(begin, end - begin);
      const std::string name = code.substr(3, code.find(".cpp") + 4 - 3);
      EXPECT_EQ(code, read(root / name)) << page << " shows another " << name;
      ++found;
    }
  }
  EXPECT_GE(found, 1);
}

// Lines of code without the white space that a formatter moves.
std::string squeezed(const std::string& code) {
  std::string result;
  for (const char c : code)
    if (!std::isspace(static_cast<unsigned char>(c))) result += c;
  return result;
}

// Every piece of code in the right column of the table occurs in the program that the page names.
TEST(Docs, TheBettyTutorialIsTheExample) {
  const std::string program = squeezed(read(root / "examples/betty_tutorial/main.cpp"));
  std::istringstream page(read(root / "docs/tutorials/betty-user.md"));
  int found = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t right = line.find("` | `");
    ASSERT_NE(right, std::string::npos) << line;
    for (std::size_t at = line.find('`', right + 1); at != std::string::npos;) {
      const std::size_t end = line.find('`', at + 1);
      ASSERT_NE(end, std::string::npos) << line;
      const std::string code = line.substr(at + 1, end - at - 1);
      EXPECT_NE(program.find(squeezed(code)), std::string::npos) << code;
      ++found;
      at = line.find('`', end + 1);
    }
  }
  EXPECT_GE(found, 20);
}

TEST(Docs, DescribedDevicesCanBePlannedFor) {
  int found = 0;
  for (const auto& entry : fs::directory_iterator(root / "devices")) {
    if (entry.path().string().ends_with(".tuning.json")) continue;  // beside its device
    EXPECT_FALSE(io::load_tuning(entry.path()).libraries.empty()) << entry.path();
    const Rates rates = io::load_device(entry.path());
    EXPECT_GT(rates.memory.count, 0) << entry.path();
    ++found;
  }
  EXPECT_GT(found, 0);
}

// Links between pages and to files of the tree lead somewhere.
TEST(Docs, LinksLeadSomewhere) {
  std::vector<fs::path> pages{root / "README.md", root / "CONTRIBUTING.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const fs::path& page : pages) {
    const std::string text = prose(read(page));
    EXPECT_FALSE(text.empty()) << page;
    for (std::size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 2)) {
      std::string target = text.substr(at + 2, text.find(')', at) - at - 2);
      target = target.substr(0, target.find('#'));
      if (target.empty() || target.find("://") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists(page.parent_path() / target)) << page << " links to " << target;
    }
  }
}

}  // namespace
}  // namespace ebb::test
