// The progress line, on a terminal and off it.
#include "ebb/report/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "ebb/error.h"
#include "report/progress_line.h"
#include "report/utf8.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

using namespace std::chrono_literals;
using namespace report;

TEST(Columns, Counts) {
  EXPECT_EQ(columns("step"), 4);
  EXPECT_EQ(columns("é"), 1);
  EXPECT_EQ(columns("e\u0301"), 1);
  EXPECT_EQ(columns("語"), 2);
  EXPECT_EQ(columns("😀"), 2);
  EXPECT_EQ(columns("▕█▎▏…"), 5);
}

TEST(Columns, CutsBetweenCharacters) {
  const auto cut = [](std::string text, int width) {
    cut_to_columns(text, width, "…");
    return text;
  };
  EXPECT_EQ(cut("学習率", 6), "学習率");
  EXPECT_EQ(cut("学習率", 5), "学習…");
  EXPECT_EQ(cut("学習率", 4), "学…");  // the second would take columns 3 and 4
  EXPECT_EQ(cut("abc", 1), "…");
  EXPECT_EQ(cut("abc", 0), "");
}

TEST(ProgressLine, Durations) {
  EXPECT_EQ(duration_text(0.44), "0.4 s");
  EXPECT_EQ(duration_text(9.99), "10 s");
  EXPECT_EQ(duration_text(59.6), "1 min 00 s");
  EXPECT_EQ(duration_text(185), "3 min 05 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
  EXPECT_EQ(duration_text(273600), "3 d 04 h");
}

TEST(ProgressLine, FitsEveryWidth) {
  const ProgressState state{"学習\n", 120, 1000, 2.302585, 1536_MiB, 0.21, 185.0, {}};
  std::string plain;
  append_plain_line(plain, state);
  EXPECT_EQ(plain,
            "学習   step 120/1000 (12%)  loss 2.3026  210 ms/step  1536.00 MiB  3 min 05 s left");
  for (const bool unicode : {false, true}) {
    for (int width = 0; width <= 140; ++width) {
      std::string line;
      append_bar_line(line, state, {width, unicode});
      EXPECT_LE(columns(line), width) << line;
      EXPECT_EQ(line, valid_utf8(line));
      if (width < 86) continue;  // the figures and the narrowest bar
      EXPECT_NE(line.find("3 min 05 s left"), std::string::npos) << line;
      EXPECT_NE(line.find(unicode ? "▏" : "]"), std::string::npos) << line;
    }
  }
}

TEST(ProgressLine, BarFills) {
  const auto bar = [](std::int64_t step, bool unicode) {
    std::string line;
    append_bar_line(line, {"", step, 8, 1.0, 0_B, {}, {}, {}}, {29, unicode});
    return line;
  };
  EXPECT_EQ(bar(0, false), "step 0/8 [......] loss 1.0000");
  EXPECT_EQ(bar(4, false), "step 4/8 [###...] loss 1.0000");
  EXPECT_EQ(bar(8, false), "step 8/8 [######] loss 1.0000");
  EXPECT_EQ(bar(3, true), "step 3/8 ▕██▎   ▏ loss 1.0000");
  EXPECT_EQ(bar(8, true), "step 8/8 ▕██████▏ loss 1.0000");
  EXPECT_EQ(bar(9, true), "step 9/8 ▕██████▏ loss 1.0000");
}

// The time at which tests' runs begin.
constexpr Progress::Clock::time_point noon{12h};

class ProgressToFile : public testing::Test {
 protected:
  ProgressToFile() : descriptor_(open((folder_ / "out").c_str(), O_WRONLY | O_CREAT, 0644)) {}
  ~ProgressToFile() override { close(descriptor_); }

  ProgressOptions options() const { return {.label = "", .descriptor = descriptor_}; }
  std::vector<std::string> written() const { return lines(contents(folder_ / "out")); }

 private:
  TemporaryFolder folder_;
  int descriptor_;
};

TEST_F(ProgressToFile, WritesALineEveryTenth) {
  {
    Progress progress(200, options(), noon);
    for (int step = 1; step <= 200; ++step)
      progress.update(step, 2.0, 1_GiB, noon + step * 10ms + 1s);
  }
  const auto got = written();
  ASSERT_EQ(got.size(), 11u);
  EXPECT_EQ(got[0], "step 1/200 (0%)  loss 2.0000  1024.00 MiB");
  EXPECT_EQ(got[1], "step 20/200 (10%)  loss 2.0000  10.0 ms/step  1024.00 MiB  1.8 s left");
  EXPECT_EQ(got[10], "step 200/200 (100%)  loss 2.0000  10.0 ms/step  1024.00 MiB  in 3.0 s");
}

TEST_F(ProgressToFile, WritesALineAMinuteAndTheLastState) {
  Progress progress(0, options(), noon);
  for (int step = 1; step <= 100; ++step) progress.update(step, 2.0, 0_B, noon + step * 2s);
  progress.print("a word");
  progress.finish(noon + 205s);
  progress.update(101, 2.0, 0_B, noon + 300s);
  const std::vector<std::string> want{
      "step 1  loss 2.0000",
      "step 31  loss 2.0000  2000 ms/step",
      "step 61  loss 2.0000  2000 ms/step",
      "step 91  loss 2.0000  2000 ms/step",
      "a word",
      "step 100  loss 2.0000  2000 ms/step  in 3 min 25 s",
  };
  EXPECT_EQ(written(), want);
}

TEST_F(ProgressToFile, FollowsAChangeOfSpeed) {
  Progress progress(10000, options(), noon);
  auto now = noon;
  std::int64_t step = 0;
  for (; step < 500; ++step) progress.update(step, 1.0, 0_B, now += 10ms);
  for (; step <= 1000; ++step) progress.update(step, 1.0, 0_B, now += 200ms);
  // 100 seconds at the new speed, ten times what is remembered.
  EXPECT_NE(written().back().find("  200 ms/step  "), std::string::npos) << written().back();
}

TEST_F(ProgressToFile, SaysNothingOfARunWithoutSteps) {
  { Progress progress(10, options()); }
  EXPECT_TRUE(written().empty());
  EXPECT_THROW(Progress(-1, options()), ValueError);
}

// A terminal of its own, whose screen side is read back.
class Terminal {
 public:
  explicit Terminal(unsigned short width) {
    screen_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (screen_ < 0 || grantpt(screen_) != 0 || unlockpt(screen_) != 0) return;
    descriptor_ = open(ptsname(screen_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    resize(width);
  }
  ~Terminal() {
    if (descriptor_ >= 0) close(descriptor_);
    if (screen_ >= 0) close(screen_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int descriptor() const { return descriptor_; }
  void resize(unsigned short width) const {
    winsize size{};
    size.ws_row = 24, size.ws_col = width;
    ioctl(descriptor_, TIOCSWINSZ, &size);
  }

  // What was written since the last call. Reading waits for bytes, so an end is written first.
  std::string shown() const {
    std::string text;
    if (write(descriptor_, "\x04", 1) != 1) return text;
    for (char c; read(screen_, &c, 1) == 1 && c != '\x04';) text += c;
    return text;
  }

 private:
  int screen_ = -1, descriptor_ = -1;
};

// Sets an environment variable, and restores the old value.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* was = std::getenv(name)) before_ = was, had_ = true;
    setenv(name, value, 1);
  }
  ~Environment() { had_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool had_ = false;
};

class ProgressOnTerminal : public testing::Test {
 protected:
  void SetUp() override {
    if (terminal_.descriptor() < 0) GTEST_SKIP() << "no terminal can be made here";
  }
  ProgressOptions options() const { return {.label = "", .descriptor = terminal_.descriptor()}; }

  Terminal terminal_{64};
  Environment term_{"TERM", "xterm"}, locale_{"LC_ALL", "C.UTF-8"};
};

TEST_F(ProgressOnTerminal, RedrawsOneLineTenTimesASecond) {
  Progress progress(2000, options(), noon);
  for (int step = 1; step <= 1000; ++step) progress.update(step, 2.0, 0_B, noon + step * 1ms);
  const std::string shown = terminal_.shown();
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\r'), 10);  // at 1, 101, ..., 901 ms
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 0);
  EXPECT_EQ(shown.substr(shown.rfind('\r')),
            "\rstep 901/2000 ▕████     ▏ loss 2.0000  1.00 ms/step  1.1 s left\x1b[K");
  progress.finish(noon + 1s);
  EXPECT_EQ(terminal_.shown(),
            "\rstep 1000/2000 ▕█████     ▏ loss 2.0000  1.00 ms/step  in 1.0 s\x1b[K\r\n");
}

TEST_F(ProgressOnTerminal, FollowsTheWidth) {
  Progress progress(10, options(), noon);
  auto now = noon;
  for (const int width : {200, 40, 20, 1}) {
    terminal_.resize(static_cast<unsigned short>(width));
    progress.update(1, 2.0, 1_GiB, now += 1s);
    const std::string shown = terminal_.shown();
    ASSERT_GE(shown.size(), 4u);
    EXPECT_LT(columns(shown.substr(1, shown.size() - 4)), width) << shown;
  }
}

TEST_F(ProgressOnTerminal, PrintsAboveTheLine) {
  Progress progress(10, options(), noon);
  progress.update(1, 2.0, 0_B, noon);
  const std::string line = terminal_.shown();
  progress.print("saved");
  EXPECT_EQ(terminal_.shown(), "\r\x1b[Ksaved\r\n" + line);
}

TEST_F(ProgressOnTerminal, ADumbTerminalGetsPlainLines) {
  Environment dumb("TERM", "dumb");
  Progress progress(10, options(), noon);
  progress.update(1, 2.0, 0_B, noon);
  EXPECT_EQ(terminal_.shown(), "step 1/10 (10%)  loss 2.0000\r\n");
}

}  // namespace
}  // namespace ebb::test
