// The line that a terminal shows while a long plan is made, and Ctrl-C meanwhile.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "support/command_line.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

// The program on a terminal of its own.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> words) {
    words.insert(words.begin(), program());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (process_ == 0) {
      setenv("TERM", "xterm", 1);
      execv(arguments.front(), arguments.data());
      _exit(127);
    }
  }
  ~OnTerminal() {
    if (process_ > 0) kill(process_, SIGKILL), waitpid(process_, nullptr, 0);
    close(terminal_);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  // Reads until the text appears, the program ends, or a minute is over.
  bool shows(const std::string& text) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + std::chrono::minutes(1);
    while (seen_.find(text) == std::string::npos && Clock::now() < end) {
      pollfd ready{terminal_, POLLIN, 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t count = read(terminal_, bytes, sizeof bytes);
      if (count <= 0) break;
      seen_.append(bytes, static_cast<std::size_t>(count));
    }
    return seen_.find(text) != std::string::npos;
  }
  void type(char key) { ASSERT_EQ(write(terminal_, &key, 1), 1); }
  // As waitpid gives it.
  int ended() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = 0;
    return status;
  }
  const std::string& seen() const { return seen_; }

 private:
  pid_t process_ = 0;
  int terminal_ = -1;
  std::string seen_;
};

constexpr char ctrl_c = '\x03';

// A hundred budgets of a model with many instructions take many seconds to plan.
TEST(Waiting, ALongPlanIsToldAndCanBeInterrupted) {
  const TemporaryFolder folder;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"frontier", "--workload", "gpt2", "--points", "100", "--out",
                                 (folder / "curve").string()},
        {"fit", "--workload", "gpt2", "--budget", "2GiB", "--points", "100"}}) {
    OnTerminal terminal(words);
    EXPECT_TRUE(terminal.shows("planning, ")) << terminal.seen();
    EXPECT_TRUE(terminal.shows(" s (Ctrl-C ends it)")) << terminal.seen();
    terminal.type(ctrl_c);
    EXPECT_TRUE(terminal.shows("ebb: interrupted before the first step; nothing was written"))
        << terminal.seen();
    const int status = terminal.ended();
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGINT);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "curve"));
}

// The step in which Ctrl-C is pressed is completed, and the program says so at once.
TEST(Waiting, CtrlCInTrainingIsAnswered) {
  OnTerminal terminal({"train", "--workload", "mlp", "--hidden", "8", "--batch", "16", "--steps",
                       "100000000", "--threads", "1"});
  EXPECT_TRUE(terminal.shows("ms/step")) << terminal.seen();
  terminal.type(ctrl_c);
  EXPECT_TRUE(terminal.shows("ebb: ending after this step; Ctrl-C again ends at once"))
      << terminal.seen();
  EXPECT_FALSE(terminal.shows("100000000/100000000"));  // reads until the program ends
  const int status = terminal.ended();
  ASSERT_TRUE(WIFEXITED(status)) << terminal.seen();
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

}  // namespace
}  // namespace ebb::test
