// Logs of a run, read back as their readers do, and what happens when they cannot be written.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "ebb/error.h"
#include "ebb/report/run_log.h"
#include "report/crc32c.h"
#include "report/utf8.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using namespace report;

template <typename Call>
std::string file_error(Call call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

constexpr double infinity = std::numeric_limits<double>::infinity();

// --- CRC32C and UTF-8

TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

TEST(Utf8, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(valid_utf8("aé語😀"), "aé語😀");
  EXPECT_EQ(valid_utf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(valid_utf8("\xC3"), "\uFFFD");                                // ends too soon
  EXPECT_EQ(valid_utf8("\xC0\xAF"), "\uFFFD\uFFFD");                      // longer than need be
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // past U+10FFFF
}

// --- JSON lines

TEST(JsonLines, WritesOneObjectALine) {
  TemporaryFolder folder;
  const auto log = json_lines(folder / "new/run.jsonl");
  log->scalar("loss", 1, 2.302585092994046);
  EXPECT_EQ(contents(folder / "new/run.jsonl"),
            "{\"step\":1,\"tag\":\"loss\",\"value\":2.30258509}\n")
      << "a line must be there before the call returns";
  log->scalar("lr", 2, 1e-300);
  log->scalar("loss", 3, -infinity);
  log->scalar("loss", 4, std::nan(""));
  log->text("a \"tag\"\\", -5, "two\nlines\t\x01 é \xFF");
  log->close();
  log->scalar("loss", 6, 0.0);

  const auto got = lines(contents(folder / "new/run.jsonl"));
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(got[1], R"({"step":2,"tag":"lr","value":1e-300})");
  EXPECT_EQ(got[2], R"({"step":3,"tag":"loss","value":null,"note":"-inf"})");
  EXPECT_EQ(got[3], R"({"step":4,"tag":"loss","value":null,"note":"nan"})");
  const auto text = nlohmann::json::parse(got[4]);
  EXPECT_EQ(text["step"], -5);
  EXPECT_EQ(text["tag"], "a \"tag\"\\");
  EXPECT_EQ(text["text"], "two\nlines\t\x01 é \uFFFD");
}

TEST(JsonLines, NineDigitsKeepEveryFloat) {
  TemporaryFolder folder;
  const auto log = json_lines(folder / "run.jsonl");
  std::vector<float> values{0.1f, 16777217.0f, 3.4028235e38f, 1e-45f, -0.0f, 1.0f / 3.0f};
  for (const float value : values) log->scalar("x", 0, value);
  const auto got = lines(contents(folder / "run.jsonl"));
  ASSERT_EQ(got.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(static_cast<float>(nlohmann::json::parse(got[i])["value"].get<double>()), values[i]);
}

TEST(JsonLines, GoesOnAfterATornLine) {
  TemporaryFolder folder;
  std::ofstream(folder / "run.jsonl") << "{\"step\":1}\n{\"ste";
  json_lines(folder / "run.jsonl")->scalar("x", 2, 1.0);
  json_lines(folder / "run.jsonl")->scalar("x", 3, 1.0);
  EXPECT_EQ(contents(folder / "run.jsonl"),
            "{\"step\":1}\n{\"ste\n"
            "{\"step\":2,\"tag\":\"x\",\"value\":1}\n{\"step\":3,\"tag\":\"x\",\"value\":1}\n");
}

TEST(RunLog, NamesThePathThatCannotBeWritten) {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const fs::path& path : {folder / "file/run.jsonl", folder.path()})
    EXPECT_NE(file_error([&] { json_lines(path); }).find((folder / "").parent_path().string()),
              std::string::npos);
  EXPECT_NE(file_error([&] { tensorboard(folder / "file"); }).find((folder / "file").string()),
            std::string::npos);
}

TEST(RunLog, ReportsAFullDiskOnce) {
  const auto log = json_lines("/dev/full");
  EXPECT_EQ(file_error([&] { log->scalar("loss", 1, 1.0); }),
            "/dev/full: cannot write the log, which ends here: No space left on device");
  EXPECT_NO_THROW(log->scalar("loss", 2, 1.0));
  EXPECT_NO_THROW(log->close());
}

// While alive, files of this process cannot grow past a size; writes then stop in the middle of a
// record, as they do on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(RunLog, TakesBackARecordThatDoesNotFit) {
  TemporaryFolder folder;
  const auto log = json_lines(folder / "run.jsonl");
  log->scalar("loss", 1, 0.5);
  const std::string before = contents(folder / "run.jsonl");
  std::string error;
  {
    FileSizeLimit limit(before.size() + 10);
    error = file_error([&] { log->scalar("loss", 2, 0.5); });
  }
  EXPECT_NE(error.find((folder / "run.jsonl").string()), std::string::npos) << error;
  EXPECT_EQ(contents(folder / "run.jsonl"), before);
}

TEST(RunLog, AllOfWritesToEveryLog) {
  TemporaryFolder folder;
  std::vector<std::unique_ptr<RunLog>> logs;
  logs.push_back(json_lines("/dev/full"));
  logs.push_back(none());
  logs.push_back(json_lines(folder / "run.jsonl"));
  const auto log = all_of(std::move(logs));
  EXPECT_THROW(log->scalar("loss", 1, 0.5), FileError);
  EXPECT_NO_THROW(log->text("note", 2, "on"));
  EXPECT_NO_THROW(log->close());
  log->scalar("loss", 3, 0.5);
  EXPECT_EQ(lines(contents(folder / "run.jsonl")).size(), 2u);
}

// --- TensorBoard event files

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  return value;
}

// Every record's message, its checksums verified.
std::vector<std::string> records(const fs::path& path) {
  const std::string file = contents(path);
  const auto checksum = [](std::string_view bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  std::vector<std::string> messages;
  for (std::string_view rest = file; !rest.empty();) {
    const std::uint64_t size = little_endian(rest.substr(0, 8));
    EXPECT_EQ(little_endian(rest.substr(8, 4)), checksum(rest.substr(0, 8)));
    if (rest.size() < 16 || size > rest.size() - 16)
      return ADD_FAILURE() << "a torn record", messages;
    messages.emplace_back(rest.substr(12, size));
    EXPECT_EQ(little_endian(rest.substr(12 + size, 4)), checksum(messages.back()));
    rest.remove_prefix(16 + size);
  }
  return messages;
}

std::vector<fs::path> files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

// The messages are compared with their encoding written out by hand; tools/check_tensorboard.py
// reads files with TensorBoard itself.
TEST(Tensorboard, WritesEvents) {
  using namespace std::string_literals;
  TemporaryFolder folder;
  const auto log = tensorboard(folder / "run");
  log->scalar("loss", 300, 0.5);
  log->scalar("x", -1, 1.0);
  log->text("t", 1, "hi");
  const auto found = files(folder / "run");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].filename().string().rfind("events.out.tfevents.", 0), 0u) << found[0];
  const auto messages = records(found[0]);
  ASSERT_EQ(messages.size(), 4u);
  for (const std::string& message : messages) {
    EXPECT_EQ(message[0], '\x09');  // field 1, 8 bytes
    const auto wall_time =
        std::bit_cast<double>(little_endian(std::string_view(message).substr(1, 8)));
    EXPECT_NEAR(wall_time, static_cast<double>(std::time(nullptr)), 600.0);
  }
  EXPECT_EQ(messages[0].substr(9),
            "\x1A\x0D"
            "brain.Event:2"s);
  EXPECT_EQ(messages[1].substr(9),
            "\x10\xAC\x02\x2A\x0D\x0A\x0B\x0A\x04"
            "loss\x15\0\0\0\x3F"s);
  EXPECT_EQ(
      messages[2].substr(9),
      "\x10\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01\x2A\x0A\x0A\x08\x0A\x01x\x15\0\0\x80\x3F"s);
  EXPECT_EQ(messages[3].substr(9),
            "\x10\x01\x2A\x1F\x0A\x1D\x0A\x01t\x42\x0C\x08\x07\x12\x04\x12\x02\x08\x01\x42\x02hi"s
            "\x4A\x0A\x0A\x06\x0A\x04text\x20\x02"s);
}

TEST(Tensorboard, RunsInOneFolderHaveTheirOwnFiles) {
  TemporaryFolder folder;
  const auto one = tensorboard(folder.path()), two = tensorboard(folder.path());
  one->scalar("x", 1, 1.0);
  const auto found = files(folder.path());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(records(found[0]).size() + records(found[1]).size(), 3u);
}

}  // namespace
}  // namespace ebb::test
