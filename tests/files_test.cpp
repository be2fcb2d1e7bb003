// Paths that are not regular files, files of other writers, and files that change while they are
// read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "ebb/data/images.h"
#include "ebb/data/labelled_text.h"
#include "ebb/data/text.h"
#include "ebb/ebb.h"
#include "ebb/io/atomic_file.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/device_file.h"
#include "ebb/io/hugging_face.h"
#include "ebb/io/safetensors.h"
#include "ebb/nn/layers.h"
#include "support/command_line.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, std::string_view text) {
  io::AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_mode;
}

// A named pipe, and a reader of everything that is written to it.
class Pipe {
 public:
  explicit Pipe(const fs::path& path) : path_(path) { EXPECT_EQ(mkfifo(path.c_str(), 0600), 0); }
  void read_to_end() {
    descriptor_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
    fcntl(descriptor_, F_SETFL, 0);
    reader_ = std::thread([this] {
      char part[4096];
      pollfd ready{descriptor_, POLLIN, 0};
      poll(&ready, 1, -1);  // before anybody has written, reading would find an end
      for (ssize_t got; (got = ::read(descriptor_, part, sizeof part)) != 0;)
        if (got > 0) text_.append(part, static_cast<std::size_t>(got));
    });
  }
  std::string text() {
    reader_.join();
    close(descriptor_);
    return text_;
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
  std::thread reader_;
  std::string text_;
};

TEST(AtomicFile, KeepsSymbolicLinks) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "store");
  folder.write("store/real", "old");
  fs::create_symlink("store/real", folder / "link");
  fs::create_symlink("link", folder / "second");
  fs::create_symlink("store/later", folder / "dangling");
  write(folder / "second", "new");
  write(folder / "dangling", "made");
  for (const char* link : {"link", "second", "dangling"})
    EXPECT_TRUE(fs::is_symlink(folder / link)) << link;
  EXPECT_EQ(contents(folder / "store/real"), "new");
  EXPECT_EQ(contents(folder / "store/later"), "made");
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"store", "link", "second", "dangling"}));
  EXPECT_EQ(names_in(folder / "store"), (std::set<std::string>{"real", "later"}));

  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  expect_error([&] { write(folder / "a", "x"); }, {"/a", "circle"});
  fs::create_symlink("no/where", folder / "lost");
  expect_error([&] { write(folder / "lost", "x"); }, {"/lost", "cannot create"});
}

TEST(AtomicFile, KeepsPermissions) {
  const TemporaryFolder folder;
  const mode_t mask = umask(027);
  write(folder / "new", "x");
  umask(mask);
  EXPECT_EQ(mode_of(folder / "new") & 07777, 0640u);
  for (const mode_t mode : {0600u, 0664u, 0751u}) {
    chmod((folder / "new").c_str(), mode);
    write(folder / "new", "y");
    EXPECT_EQ(mode_of(folder / "new") & 07777, mode);
  }
}

TEST(AtomicFile, WritesIntoPipesAndDevices) {
  const TemporaryFolder folder;
  Pipe pipe(folder / "pipe");
  expect_error([&] { write(folder / "pipe", "x"); }, {"/pipe", "nobody reads"});
  pipe.read_to_end();
  write(folder / "pipe", "through the pipe");
  EXPECT_EQ(pipe.text(), "through the pipe");
  EXPECT_TRUE(S_ISFIFO(mode_of(folder / "pipe")));

  write("/dev/null", "x");
  EXPECT_TRUE(S_ISCHR(mode_of("/dev/null")));
  expect_error([] { write("/dev/full", "x"); }, {"/dev/full", "cannot write", "No space"});
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"pipe"}));
}

TEST(AtomicFile, AReaderThatGoesAwayIsAnError) {
  const TemporaryFolder folder;
  mkfifo((folder / "pipe").c_str(), 0600);
  const int reader = open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  io::AtomicFile file(folder / "pipe");
  file.write("x");
  close(reader);
  expect_error([&] { file.write("y"); }, {"/pipe", "Broken pipe"});
}

TEST(AtomicFile, WritesIntoOpenFilesOfTheProcess) {
  const TemporaryFolder folder;
  const int file = open((folder / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(::write(file, "first ", 6), 6);
  write("/dev/fd/" + std::to_string(file), "second ");
  write("/proc/self/fd/" + std::to_string(file), "third ");
  ASSERT_EQ(::write(file, "last", 4), 4);
  close(file);
  EXPECT_EQ(contents(folder / "out"), "first second third last");
}

TEST(AtomicFile, RefusesFoldersAndSockets) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "folder");
  expect_error([&] { write(folder / "folder", "x"); }, {"/folder", "this is a folder"});
  const int socket_file = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder / "socket";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(socket_file, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_error([&] { write(path, "x"); }, {"/socket", "this is a socket"});
  close(socket_file);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"folder", "socket"}));
}

// A process that is killed in the middle leaves its temporary file; the next writer of the same
// target removes it, whatever its number, and nothing else.
TEST(AtomicFile, SweepsWhatKilledWritersLeft) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    io::AtomicFile file(folder / "run");
    file.write("half");
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  ASSERT_EQ(names_in(folder.path()).size(), 1u);
  folder.write("run." + std::to_string(getpid()) + ".tmp", "of an earlier process, same number");
  const std::set<std::string> others{"run.1.tmp.bak", "run.tmp", "run.x.tmp", "runs.1.tmp",
                                     "1.tmp"};
  for (const std::string& name : others) folder.write(name, "another's");
  write(folder / "run", "whole");
  std::set<std::string> expected = others;
  expected.insert("run");
  EXPECT_EQ(names_in(folder.path()), expected);
}

TEST(AtomicFile, WritersAtTheSameTimeDoNotDisturbEachOther) {
  const TemporaryFolder folder;
  io::AtomicFile slow(folder / "run");
  slow.write("slow, ");
  write(folder / "run", "quick");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write(folder / "run", "child");
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(contents(folder / "run"), "child");
  slow.write("but whole");
  slow.commit();
  EXPECT_EQ(contents(folder / "run"), "slow, but whole");
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"run"}));
}

TEST(Files, StandardOutputIsNotReplaced) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const Outcome outcome =
      run("plan --workload mlp --width 8 --json --profile /dev/stdout > " + out);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::string text = contents(out);
  EXPECT_NE(text.find("\"peak_instruction\""), std::string::npos);
  EXPECT_NE(text.find("\"workload\":\"mlp\""), std::string::npos);
}

// A file that is truncated while it is open would end a process that had mapped it.
TEST(Files, AFileThatShrinksIsAnError) {
  const TemporaryFolder folder;
  const fs::path path = folder / "x.safetensors";
  io::write_safetensors(path, {{"x", eval(zeros({1 << 16}))}});
  const io::SafetensorsFile file(path);
  fs::resize_file(path, 4096);
  Variable same(zeros({1 << 16})), half(zeros({1 << 16}, bf16));
  for (const Variable& variable : {same, half})
    expect_error([&] { file.load("x", variable); }, {"x.safetensors", "the file ends"});
  expect_error([&] { file.bytes("x"); }, {"x.safetensors", "the file ends"});

  folder.write("text", std::string(1 << 16, 'x'));
  const data::TokenStream stream = data::TokenStream::bytes(folder / "text");
  fs::resize_file(folder / "text", 10);
  std::vector<std::int32_t> tokens(100);
  expect_error([&] { stream.read(0, tokens); }, {"/text", "the file ends"});
}

TEST(Files, PipesAreRefusedAndNotWaitedFor) {
  const TemporaryFolder folder;
  for (const char* name :
       {"pipe", "config.json", "checkpoint.safetensors", "test_batch.bin", "a.csv"})
    ASSERT_EQ(mkfifo((folder / name).c_str(), 0600), 0);
  const fs::path pipe = folder / "pipe";
  const auto refused = [](const std::function<void()>& use) {
    expect_error(use, {"not a regular file"});
  };
  refused([&] { io::SafetensorsFile file(pipe); });
  refused([&] { (void)io::load_device(pipe); });
  refused([&] { (void)io::model_type(folder.path()); });
  refused([&] { (void)data::TokenStream::bytes(pipe); });
  refused([&] { (void)data::Vocabulary::of_text(pipe); });
  refused([&] { (void)data::read_cifar10(folder.path(), data::Split::test); });
  refused([&] { (void)data::read_idx(pipe, pipe, 10); });
  refused([&] { (void)data::read_labelled_csv(pipe, 2); });
  refused([&] { (void)data::read_labelled_jsonl(pipe, 2); });
  expect_failure("train --workload gpt2 --layers 1 --width 8 --heads 1 --data " + pipe.string(), 1,
                 "not a regular file");
  expect_failure("train --workload mlp --width 8 --resume " + folder.path().string(), 1,
                 "checkpoint.safetensors: not a regular file");
  expect_usage_error("plan --workload mlp --device " + pipe.string(), "neither cpu nor cuda");
}

struct Small : nn::Module<Small> {
  nn::Linear only{at("only"), 2, 2};
};

TEST(Files, SeedsAreUnsigned) {
  constexpr std::uint64_t largest = ~std::uint64_t{0};
  const TemporaryFolder folder;
  const auto use = [&](std::uint64_t seed, const auto& what) {
    auto model = make<Small>(device::cpu, f32);
    TrainStep step(
        model, optim::SGD{.lr = 0.1}, [&](const Batch& b) { return mean(model.only(b.x())); },
        {.schedule = optim::constant(), .clip_norm = {}, .compile = {.plan = {}, .seed = seed}});
    what(model, step);
  };
  use(largest,
      [&](auto& model, TrainStep& step) { io::save_checkpoint(folder / "run", model, step); });
  use(largest, [&](auto& model, TrainStep& step) {
    EXPECT_NO_THROW(io::load_checkpoint(folder / "run", model, step));
  });
  use(largest - 1, [&](auto& model, TrainStep& step) {
    expect_error([&] { io::load_checkpoint(folder / "run", model, step); },
                 {"seed 18446744073709551615", "18446744073709551614"});
  });

  const std::string train =
      "train --workload mlp --width 8 --batch 4 --eval-batches 0 --seed 18446744073709551615 ";
  EXPECT_EQ(run(train + "--steps 1 --checkpoint " + (folder / "all").string()).code, 0);
  const Outcome resumed = run(train + "--steps 2 --resume " + (folder / "all").string());
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  expect_usage_error("plan --workload mlp --seed 18446744073709551616", "from 0 to 2^64 - 1");
  expect_usage_error("plan --workload mlp --seed -1", "--seed");
}

TEST(Files, PathsNeedNotBeUtf8) {
  const TemporaryFolder folder;
  const fs::path odd = folder / "caf\xe9 \xff";
  fs::create_directory(odd);
  const std::string quoted = "'" + odd.string() + "'";
  const std::string sizes = "--workload mlp --width 8 --batch 4 ";
  for (const std::string& arguments :
       {"train " + sizes + "--steps 1 --json --eval-batches 0 --checkpoint " + quoted + " --log " +
            quoted,
        "train " + sizes + "--steps 2 --json --eval-batches 0 --resume " + quoted,
        "plan " + sizes + "--json --profile " + quoted + "/profile",
        "profile " + sizes + "--steps 1 --json --out " + quoted,
        "frontier " + sizes + "--points 2 --json --out " + quoted}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  }
  EXPECT_NE(contents(odd / "frontier.json").find("caf\xef\xbf\xbd"), std::string::npos);
}

}  // namespace
}  // namespace ebb::test
