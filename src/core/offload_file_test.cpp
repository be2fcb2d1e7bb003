#include "core/offload_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "ebb/error.h"
#include "ebb/storage.h"
#include "support/allocation_count.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Method = OffloadFile::Method;
using Ticket = OffloadFile::Ticket;

// Memory that begins at a page.
class Memory {
 public:
  explicit Memory(Bytes size) : storage_(Storage::allocate(device::cpu, size)) {}
  std::span<std::byte> all() const {
    return {storage_->data(), static_cast<std::size_t>(storage_->size().count)};
  }
  std::span<std::byte> part(Bytes offset, Bytes size) const {
    return all().subspan(static_cast<std::size_t>(offset.count),
                         static_cast<std::size_t>(size.count));
  }
  // Fills the memory with bytes that do not repeat.
  void fill(std::uint32_t seed) const {
    std::array<std::uint64_t, 512> block{};
    std::uint64_t value = seed;
    for (std::size_t at = 0; at < all().size(); at += sizeof block) {
      for (std::uint64_t& word : block) word = value++ * 6364136223846793005u;
      std::memcpy(all().data() + at, block.data(), sizeof block);
    }
  }

 private:
  std::shared_ptr<Storage> storage_;
};

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// The message of the error that `call` throws; empty if there is none.
template <class Expected, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void cut(const OffloadFile& file, Bytes size) {
  ASSERT_EQ(ftruncate(file.descriptor(), size.count), 0);
}

// Whether the kernel lets us use io_uring here: containers often forbid it.
bool can_use(Method method, const std::filesystem::path& folder) {
  if (method != Method::io_uring) return true;
  return OffloadFile(folder, 4_KiB).method() == "io_uring";
}

class Offload : public testing::TestWithParam<Method> {
 protected:
  void SetUp() override {
    if (!can_use(GetParam(), folder_.path())) GTEST_SKIP() << "io_uring cannot be used here";
  }
  OffloadFile make(Bytes size, int max_pending = 64) const {
    return OffloadFile(folder_.path(), size, max_pending, GetParam());
  }
  TemporaryFolder folder_;
};

std::string name_of(const testing::TestParamInfo<Method>& info) {
  switch (info.param) {
    case Method::automatic:
      return "Automatic";
    case Method::io_uring:
      return "IoUring";
    case Method::threads:
      return "Threads";
    case Method::buffered_threads:
      return "BufferedThreads";
  }
  return "Unknown";
}

INSTANTIATE_TEST_SUITE_P(Methods, Offload,
                         testing::Values(Method::io_uring, Method::threads,
                                         Method::buffered_threads),
                         name_of);

TEST_P(Offload, TellsWhatItIs) {
  const OffloadFile file = make(10_MiB);
  EXPECT_EQ(file.size(), 10_MiB);
  EXPECT_GE(file.alignment(), 4_KiB);
  EXPECT_EQ(file.method(), GetParam() == Method::io_uring ? "io_uring" : "threads");
  if (GetParam() == Method::buffered_threads) {
    EXPECT_FALSE(file.direct());
  }
  EXPECT_EQ(file.moved().read, 0_B);
  EXPECT_EQ(file.moved().written, 0_B);
}

TEST_P(Offload, ReservesWholeBlocksAndLeavesNoName) {
  const OffloadFile file = make(1_MiB + 1_B);
  EXPECT_EQ(file.size(), 1_MiB + file.alignment());
  struct stat facts {};
  ASSERT_EQ(fstat(file.descriptor(), &facts), 0);
  EXPECT_EQ(facts.st_nlink, 0u);
  EXPECT_EQ(facts.st_size, file.size().count);
  EXPECT_GE(facts.st_blocks * 512, file.size().count);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// Larger than all pieces in flight, so that further ones start while it is waited for.
TEST_P(Offload, MovesATransferOfManyPieces) {
  OffloadFile file = make(200_MiB);
  const Bytes size = (file.pieces_in_flight() + 3) * file.piece_size();
  ASSERT_LE(size, file.size());
  const Memory written(size), read(size);
  written.fill(1);
  file.wait(file.write(written.all(), 0_B));
  file.wait(file.read(read.all(), 0_B));
  EXPECT_TRUE(same(written.all(), read.all()));
  EXPECT_EQ(file.moved().written, size);
  EXPECT_EQ(file.moved().read, size);
  EXPECT_GT(file.moved().write_seconds, 0.0);
  EXPECT_GT(file.moved().read_seconds, 0.0);
}

// Random transfers against a copy in memory. Those that run together touch different bytes.
TEST_P(Offload, RandomTransfersMatchMemory) {
  constexpr int rounds = 40, places = 12;
  const Bytes place = 1_MiB;
  OffloadFile file = make(places * place, 7);  // fewer pending than places: some are displaced
  const Bytes unit = file.alignment();
  const Memory expected(file.size()), buffers(file.size());
  expected.fill(2);
  file.wait(file.write(expected.all(), 0_B));
  std::mt19937 random(3);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  Bytes read, written = file.size();
  for (int round = 0; round < rounds; ++round) {
    struct Started {
      Ticket ticket;
      Bytes offset, size;
      bool reads;
    };
    std::vector<Started> started;
    buffers.fill(static_cast<std::uint32_t>(round));
    for (int at = 0; at < places; ++at) {
      const std::int64_t units = place.count / unit.count, from = below(units);
      const Bytes offset = at * place + from * unit, size = (1 + below(units - from)) * unit;
      const bool reads = below(2) == 0;
      const auto memory = buffers.part(offset, size);
      started.push_back(
          {reads ? file.read(memory, offset) : file.write(memory, offset), offset, size, reads});
      (reads ? read : written) += size;
    }
    std::shuffle(started.begin(), started.end(), random);
    for (const Started& s : started) {
      file.wait(s.ticket);
      const auto moved = buffers.part(s.offset, s.size), known = expected.part(s.offset, s.size);
      if (s.reads)
        ASSERT_TRUE(same(moved, known)) << "round " << round << ", byte " << s.offset.count;
      else
        std::copy(moved.begin(), moved.end(), known.begin());
    }
  }
  EXPECT_EQ(file.moved().read, read);
  EXPECT_EQ(file.moved().written, written);
  file.wait(file.read(buffers.all(), 0_B));
  EXPECT_TRUE(same(buffers.all(), expected.all()));
}

TEST_P(Offload, ManyPendingTransfersAllArrive) {
  constexpr int count = 1000;
  OffloadFile file = make(count * 4_KiB, 16);
  const Memory written(file.size()), read(file.size());
  written.fill(4);
  std::vector<Ticket> tickets;
  for (int i = 0; i < count; ++i)
    tickets.push_back(file.write(written.part(i * 4_KiB, 4_KiB), i * 4_KiB));
  for (const Ticket ticket : tickets) file.wait(ticket);
  tickets.clear();
  for (int i = count; i-- > 0;)
    tickets.push_back(file.read(read.part(i * 4_KiB, 4_KiB), i * 4_KiB));
  file.wait_all();
  for (const Ticket ticket : tickets) EXPECT_TRUE(file.done(ticket));
  EXPECT_TRUE(same(written.all(), read.all()));
}

TEST_P(Offload, DoneComesWithoutWaiting) {
  OffloadFile file = make(160_MiB);
  const Memory memory(file.size());
  const Ticket ticket = file.write(memory.all(), 0_B);
  while (!file.done(ticket)) usleep(1000);
  EXPECT_EQ(file.moved().written, file.size());
}

TEST_P(Offload, SteadyStateAllocatesNothing) {
  OffloadFile file = make(64_MiB, 8);
  const Memory memory(64_MiB);
  const auto step = [&] {
    Ticket last;
    for (int i = 0; i < 16; ++i) {
      const Bytes offset = i * 4_MiB;
      last = i % 2 == 0 ? file.write(memory.part(offset, 4_MiB), offset)
                        : file.read(memory.part(offset, 4_MiB), offset);
    }
    file.wait(last);
    file.wait_all();
  };
  step();
  const std::int64_t before = allocation_count();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(allocation_count() - before, 0);
}

TEST_P(Offload, EmptyTransfersEndAtOnce) {
  OffloadFile file = make(64_KiB, 2);
  const Memory memory(64_KiB);
  for (int i = 0; i < 10; ++i) {
    const Ticket full = file.write(memory.all(), 0_B);
    const Ticket empty = file.write({}, 64_KiB);
    EXPECT_TRUE(file.done(empty));
    file.wait(empty);
    file.wait(full);
  }
  OffloadFile none = make(0_B);
  none.wait(none.read({}, 0_B));
  EXPECT_EQ(none.size(), 0_B);
}

TEST_P(Offload, ATransferIsWaitedForTwice) {
  OffloadFile file = make(64_KiB);
  const Memory memory(64_KiB);
  const Ticket ticket = file.write(memory.all(), 0_B);
  file.wait(ticket);
  file.wait(ticket);
  EXPECT_TRUE(file.done(ticket));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { file.wait({}); }), "transfer 0"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { file.wait({2}); }), "transfers 1 to 1"));
}

TEST_P(Offload, AnAbandonedFileEndsItsTransfers) {
  const Memory memory(160_MiB);
  {
    OffloadFile file = make(160_MiB);
    file.write(memory.all(), 0_B);
    file.read(memory.part(0_B, 1_MiB), 128_MiB);
    OffloadFile moved = std::move(file);
    file = make(4_KiB);
  }
  std::memset(memory.all().data(), 1, memory.all().size());  // nothing else uses it any more
}

TEST_P(Offload, ACutFileIsNamed) {
  OffloadFile file = make(32_MiB);
  const Memory memory(32_MiB);
  file.wait(file.write(memory.all(), 0_B));
  cut(file, 10_MiB + 512_B);
  const std::string error =
      error_of<FileError>([&] { file.wait(file.read(memory.part(0_B, 12_MiB), 8_MiB)); });
  EXPECT_TRUE(contains(error, "was cut")) << error;
  EXPECT_TRUE(contains(error, folder_.path().string())) << error;
  EXPECT_TRUE(contains(error, "ends at byte 10486272 instead of 33554432")) << error;
  // The file can still be used.
  file.wait(file.read(memory.part(0_B, 8_MiB), 0_B));
  file.wait(file.write(memory.part(0_B, 4_KiB), 4_KiB));
}

// Errors are kept until they are asked for, even if many other transfers come in between.
TEST_P(Offload, NoErrorIsLost) {
  OffloadFile file = make(1_MiB, 2);
  const Memory memory(1_MiB);
  cut(file, 512_KiB);
  const Ticket bad = file.read(memory.part(0_B, 4_KiB), 512_KiB);
  for (int i = 0; i < 20; ++i) file.read(memory.part(4_KiB, 4_KiB), 4_KiB);
  EXPECT_TRUE(contains(error_of<FileError>([&] { file.wait(bad); }), "at byte 524288"));
  file.wait(bad);  // its error has been reported

  // If all remaining transfers have failed, the next one reports it.
  file.read(memory.part(0_B, 4_KiB), 768_KiB);
  file.read(memory.part(0_B, 4_KiB), 512_KiB);
  file.wait_all();
  EXPECT_TRUE(contains(error_of<FileError>([&] { file.read(memory.part(0_B, 4_KiB), 0_B); }),
                       "at byte 786432"));
}

TEST_P(Offload, ErrorsOfTheSystemAreNamed) {
  OffloadFile file = make(1_MiB);
  const Memory memory(1_MiB);
  // Replaces the file's descriptor by one that can be read but not written.
  const int folder = open(folder_.path().c_str(), O_RDONLY);
  ASSERT_EQ(dup2(folder, file.descriptor()), file.descriptor());
  close(folder);
  const std::string error = error_of<FileError>([&] { file.wait(file.write(memory.all(), 0_B)); });
  EXPECT_TRUE(contains(error, "cannot write 1024.00 KiB at byte 0")) << error;
  EXPECT_TRUE(contains(error, folder_.path().string())) << error;
  EXPECT_TRUE(contains(error, "Bad file descriptor")) << error;
}

TEST_P(Offload, MisalignedRequestsAreNamed) {
  OffloadFile file = make(1_MiB);
  const Memory memory(1_MiB);
  const auto expect = [&](Bytes from, Bytes size, Bytes offset, const std::string& part) {
    const std::string error =
        error_of<ValueError>([&] { file.read(memory.part(from, size), offset); });
    EXPECT_TRUE(contains(error, part)) << error;
    EXPECT_TRUE(contains(error, folder_.path().string())) << error;
  };
  expect(0_B, 4_KiB, 512_B, "cannot read 4096 B at byte 512 ");
  expect(0_B, 100_B, 0_B, "must be multiples of 4096 B");
  expect(64_B, 4_KiB, 0_B, "must be multiples of 4096 B");
  expect(0_B, 8_KiB, 1_MiB - 4_KiB, "it has 1048576 B");
  expect(0_B, 4_KiB, {-4096}, "it has 1048576 B");
  expect(0_B, 4_KiB, 1_MiB + 4_KiB, "it has 1048576 B");
  EXPECT_EQ(file.moved().read, 0_B);
}

// Makes a system call fail for this thread and those it starts.
void forbid(int call, int error) {
  const auto number = static_cast<std::uint32_t>(call);
  std::array<sock_filter, 4> filter{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog program{filter.size(), filter.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// As in containers, whose usual profiles forbid io_uring.
TEST(OffloadWithoutUring, ThreadsTakeItsPlace) {
  const TemporaryFolder folder;
  const auto check = [&](int call, int error) {
    std::thread([&] {
      forbid(call, error);
      OffloadFile file(folder.path(), 16_MiB);
      EXPECT_EQ(file.method(), "threads");
      const Memory written(16_MiB), read(16_MiB);
      written.fill(5);
      file.wait(file.write(written.all(), 0_B));
      file.wait(file.read(read.all(), 0_B));
      EXPECT_TRUE(same(written.all(), read.all()));
      const std::string refusal =
          error_of<FileError>([&] { OffloadFile(folder.path(), 4_KiB, 64, Method::io_uring); });
      EXPECT_TRUE(contains(refusal, "cannot use io_uring")) << refusal;
      EXPECT_TRUE(contains(refusal, folder.path().string())) << refusal;
    }).join();
  };
  check(SYS_io_uring_setup, EPERM);
  check(SYS_io_uring_setup, ENOSYS);
  check(SYS_io_uring_enter, EPERM);
}

}  // namespace
}  // namespace ebb::test
