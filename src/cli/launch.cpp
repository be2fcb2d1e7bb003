// `ebb launch`: the same command on several processes of this host.
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <random>
#include <thread>

#include "cli/interrupt.h"
#include "cli/numbers.h"
#include "cli/ranks.h"
#include "cli/run_command.h"
#include "cli/verb.h"
#include "ebb/dist/ranks.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Signal handlers can only access globals.
volatile std::sig_atomic_t passed_on = 0;
void pass_on(int signal) { passed_on = signal; }

enum class Gpus : bool { own, shared };  // one for each rank, or as many as there are

// Environment of one rank, in addition to this process's.
std::vector<std::string> environment_of(int rank, int ranks, Gpus gpus,
                                        const dist::Listener& listener, const std::string& token) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) all.emplace_back(*entry);
  const auto set = [&](const std::string& name, const std::string& value) {
    std::erase_if(all, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    all.push_back(name + "=" + value);
  };
  set("RANK", std::to_string(rank)), set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(ranks)), set("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set("MASTER_ADDR", "127.0.0.1"), set("MASTER_PORT", std::to_string(listener.port));
  set("EBB_LAUNCH_TOKEN", token);
  // NCCL lets ranks share a GPU if it believes that they are processes of different machines.
  if (gpus == Gpus::shared) set("NCCL_HOSTID", fmt::format("{}-{}", token, rank));
  if (rank == 0) set("EBB_LAUNCH_LISTENER", std::to_string(listener.descriptor));
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

class Ranks {
 public:
  Ranks(int count, Gpus gpus, const std::vector<std::string>& command) {
    const dist::Listener listener = dist::listen_here("127.0.0.1", 0);
    std::random_device random;
    const std::string token = fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
    std::vector<std::string> words{"ebb"};
    words.insert(words.end(), command.begin(), command.end());
    for (int r = 0; r < count; ++r) {
      std::vector<std::string> environment = environment_of(r, count, gpus, listener, token);
      std::vector<char*> arguments = pointers(words), variables = pointers(environment);
      const pid_t parent = getpid();
      const pid_t child = fork();
      if (child < 0) {
        end(SIGKILL);
        throw Error(fmt::format("rank {} cannot be started: {}", r, std::strerror(errno)));
      }
      if (child == 0) {
        // No rank outlives the process that started it. Ctrl-C reaches only that process, which
        // forwards it; a second signal would end a rank at once.
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setpgid(0, 0);
        if (getppid() != parent) _exit(failure);
        if (r != 0) close(listener.descriptor);
        execve("/proc/self/exe", arguments.data(), variables.data());
        _exit(failure);
      }
      running_.push_back(child);
    }
    close(listener.descriptor);
  }
  ~Ranks() {
    end(SIGKILL);
    while (!running_.empty() && !await(std::chrono::seconds(10))) continue;
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // The first exit code that is not 0. After a failure the other ranks get time to notice it and to
  // report which rank was lost; then they are ended.
  int wait() {
    bool passed = false;
    while (!running_.empty()) {
      await(std::chrono::milliseconds(100));
      if (passed_on != 0 && !std::exchange(passed, true)) end(passed_on);
      // A rank that has finished and only exceeded its memory budget does not make the others fail.
      if (code_ != 0 && code_ != over_budget && !failed_at_) failed_at_ = Clock::now();
      if (!failed_at_) continue;
      const auto since = Clock::now() - *failed_at_;
      if (since > std::chrono::seconds(8))
        end(SIGKILL);
      else if (since > std::chrono::seconds(4))
        end(SIGTERM);
    }
    return code_;
  }

 private:
  void end(int signal) const {
    for (const pid_t child : running_) kill(child, signal);
  }

  // Collects ranks that have ended, waiting at most this long. Returns whether one has.
  bool await(std::chrono::milliseconds most) {
    const auto until = Clock::now() + most;
    do {
      for (const pid_t child : running_) {
        int status = 0;
        if (waitpid(child, &status, WNOHANG) != child) continue;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        const std::ptrdiff_t place =
            std::find(running_.begin(), running_.end(), child) - running_.begin();
        const bool first = code_ == 0 || (code_ == over_budget && code != 0);
        if (WIFSIGNALED(status) && first)
          std::cerr << fmt::format("ebb: process {} of the run was ended by signal {}", child,
                                   WTERMSIG(status))
                    << std::endl;
        if (first) code_ = code;
        running_.erase(running_.begin() + place);
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (Clock::now() < until);
    return false;
  }

  std::vector<pid_t> running_;
  int code_ = 0;
  std::optional<Clock::time_point> failed_at_;
};

// The same with ranks that are threads of this process.
int run_on_threads(int count, const std::vector<std::string>& command) {
  auto ranks = dist::thread_ranks(count);
  std::vector<int> codes(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
      const ThreadRank here(std::move(own));
      codes[r] = run_command(command);
    });
  for (std::thread& thread : threads) thread.join();
  int result = success;
  for (const int code : codes)
    if (result == success || (result == over_budget && code != success)) result = code;
  return result;
}

class Launch : public Verb {
 public:
  Launch()
      : Verb("launch", "Run a verb on several processes of this host, which work as one",
             "ebb launch -n 2 -- train --workload mlp --steps 20") {}

 protected:
  void configure(CLI::App& app) override {
    app.add_option("-n,--ranks", ranks_, "Ranks: processes, or threads with --in-process")
        ->required()
        ->check(WholeNumber(1, 1024))
        ->type_name("N");
    app.add_option("--restarts", restarts_,
                   "Number of restarts from the last checkpoint after failures; the command needs "
                   "--checkpoint")
        ->check(WholeNumber(0, 1000000))
        ->capture_default_str()
        ->type_name("N");
    app.add_flag("--in-process", in_process_,
                 "Make ranks threads of one process: on the CPU, without --restarts");
    app.add_flag("--share-gpu", share_gpu_,
                 "Let ranks share a GPU if there are fewer GPUs than ranks. For tests only: it is "
                 "slow, because bytes between ranks go through the host");
    app.add_option("command", command_, "The verb and its options, after --")
        ->required()
        ->type_name("VERB ...");
  }

  int run() override {
    if (command_.front() != "train")
      throw UsageError(fmt::format("{}: only train runs on several ranks", command_.front()));
    if (share_gpu_ && !has("--config") && value_of("--device") != "cuda")
      throw UsageError("--share-gpu is for ranks on GPUs; the command needs --device cuda");
    if (json()) command_.emplace_back("--json");
    if (const CLI::Option* threads = app().get_option("--threads"); threads->count() > 0) {
      command_.emplace_back("--threads");
      command_.push_back(threads->results().front());
    }
    if (in_process_) {
      if (restarts_ > 0)
        throw UsageError(
            "--in-process: a process that has failed cannot start itself again; "
            "--restarts is for ranks that are processes");
      if (share_gpu_)
        throw UsageError(
            "--in-process: ranks that are threads of one process run on the CPU alone");
      return run_on_threads(ranks_, command_);
    }
    if (restarts_ > 0) prepare_restarts();
    struct sigaction action = {};
    action.sa_handler = pass_on;
    for (const int signal : requests_to_end()) sigaction(signal, &action, nullptr);
    for (std::int64_t left = restarts_;; --left) {
      const int code = Ranks(ranks_, share_gpu_ ? Gpus::shared : Gpus::own, command_).wait();
      if (code == success || code == wrong_usage || code == over_budget || passed_on != 0 ||
          left == 0)
        return code;
      std::cerr << fmt::format(
                       "ebb: the run has failed (exit code {}); restarting it, {} restarts left",
                       code, left - 1)
                << std::endl;
    }
  }

 private:
  bool has(std::string_view option) const {
    return std::any_of(command_.begin(), command_.end(), [&](const std::string& word) {
      return word == option || word.starts_with(std::string(option) + "=");
    });
  }

  // The value that the command gives for an option; empty if it does not give one.
  std::string value_of(const std::string& option) const {
    for (std::size_t i = 0; i < command_.size(); ++i) {
      if (command_[i].starts_with(option + "=")) return command_[i].substr(option.size() + 1);
      if (command_[i] == option && i + 1 < command_.size()) return command_[i + 1];
    }
    return {};
  }

  void prepare_restarts() {
    if (has("--resume")) return;
    if (!has("--checkpoint"))
      throw UsageError(
          "--restarts continues from a checkpoint: the command needs --checkpoint DIR");
    command_.emplace_back("--resume"), command_.emplace_back("auto");
  }

  int ranks_ = 1;
  std::int64_t restarts_ = 0;
  bool share_gpu_ = false, in_process_ = false;
  std::vector<std::string> command_;
};

}  // namespace

std::unique_ptr<Verb> launch_verb() { return std::make_unique<Launch>(); }

}  // namespace ebb::cli
