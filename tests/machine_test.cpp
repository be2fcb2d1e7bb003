// Requests to the machine: each is granted, and then has an effect, or is refused with a reason.
// The outcome depends on the machine and on the rights of the process; some refusals are provoked.
#include "ebb/machine.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "core/processors.h"
#include "support/sanitizers.h"

namespace ebb::test {
namespace {

using Outcome = Grant::Outcome;

void expect_granted_or_reason(const Grant& grant) {
  EXPECT_NE(grant.outcome, Outcome::not_asked);
  EXPECT_FALSE(grant.detail.empty());
}

Bytes locked_by_process() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (word == "VmLck:") {
      std::int64_t kilobytes = 0;
      file >> kilobytes;
      return {kilobytes * 1024};
    }
  return {};
}

// A figure that smaps gives for the mapping that contains an address; -1 if it does not give it.
std::int64_t mapping(const std::byte* address, const std::string& key) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> begin >> dash >> end && dash == '-')
      inside = begin <= wanted && wanted < end;
    else if (inside && line.rfind(key + ":", 0) == 0)
      return std::stoll(line.substr(key.size() + 1));
  }
  return -1;
}

void write(const Storage& storage) {
  std::memset(storage.data(), 1, static_cast<std::size_t>(storage.size().count));
}

TEST(Machine, NothingIsAskedForByDefault) {
  MachineReport report;
  const auto arena = allocate_arena(device::cpu, 100_KiB, {}, report);
  EXPECT_EQ(arena->reserved(), Storage::reservation(100_KiB));
  for (const Grant* grant : {&report.huge_pages, &report.locked_memory, &report.pinned_threads})
    EXPECT_EQ(grant->outcome, Outcome::not_asked);
  EXPECT_EQ(to_string(report),
            "huge pages      not asked for\n"
            "locked memory   not asked for\n"
            "pinned threads  not asked for\n");
}

TEST(Machine, AReportSaysWhy) {
  const MachineReport report{.huge_pages = {Outcome::granted, "pages of 2 MiB"},
                             .locked_memory = {Outcome::refused, "too much"},
                             .pinned_threads = {}};
  EXPECT_EQ(to_string(report),
            "huge pages      granted: pages of 2 MiB\n"
            "locked memory   refused: too much\n"
            "pinned threads  not asked for\n");
}

// --- Huge pages

TEST(Machine, HugePages) {
  MachineReport report;
  const MachineOptions options{.huge_pages = true};
  const auto arena = allocate_arena(device::cpu, 7_MiB, options, report);
  expect_granted_or_reason(report.huge_pages);
  EXPECT_EQ(report.locked_memory.outcome, Outcome::not_asked);
  EXPECT_EQ(arena->reserved(), Storage::reservation(7_MiB, options.pages()));
  EXPECT_EQ(arena->reserved(), 8_MiB);
  write(*arena);
  EXPECT_EQ(arena->resident(), 8_MiB);
  // Whether the system has large pieces of memory at this moment is chance; that they may be used
  // is not.
  if (report.huge_pages.granted()) {
    EXPECT_NE(mapping(arena->data(), "THPeligible"), 0);
  }
}

// The kernel then uses standard pages instead of the planned huge ones: the number of bytes is the
// same.
TEST(Machine, HugePagesThatAreRefusedCountTheSame) {
  if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) GTEST_SKIP() << "no PR_SET_THP_DISABLE";
  MachineReport report;
  const auto arena = allocate_arena(device::cpu, 5_MiB, {.huge_pages = true}, report);
  EXPECT_EQ(report.huge_pages.outcome, Outcome::refused);
  EXPECT_FALSE(report.huge_pages.detail.empty());
  write(*arena);
  EXPECT_EQ(arena->resident(), 6_MiB);
  EXPECT_LE(mapping(arena->data(), "AnonHugePages"), 0);
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

// --- Locked memory

TEST(Machine, LockedMemory) {
  if (sanitized) GTEST_SKIP() << "sanitizers replace mlock by nothing";
  const Bytes locked = locked_by_process();
  {
    MachineReport report;
    const auto arena = allocate_arena(device::cpu, 100_KiB, {.lock_memory = true}, report);
    expect_granted_or_reason(report.locked_memory);
    if (report.locked_memory.granted()) {
      EXPECT_EQ(locked_by_process() - locked, arena->reserved());
      EXPECT_EQ(arena->resident(), arena->reserved());
    } else {
      EXPECT_NE(report.locked_memory.detail.find("RLIMIT_MEMLOCK"), std::string::npos);
      EXPECT_EQ(locked_by_process(), locked);
    }
    write(*arena);
  }
  EXPECT_EQ(locked_by_process(), locked);
}

TEST(Machine, LockedHugePages) {
  if (sanitized) GTEST_SKIP() << "sanitizers replace mlock by nothing";
  MachineReport report;
  const auto arena =
      allocate_arena(device::cpu, 3_MiB, {.huge_pages = true, .lock_memory = true}, report);
  expect_granted_or_reason(report.huge_pages);
  expect_granted_or_reason(report.locked_memory);
  if (report.locked_memory.granted()) {
    EXPECT_EQ(arena->resident(), 4_MiB);
  }
}

// The grant for a thread without any rights, under another limit of the process.
Grant lock_a_megabyte(rlim_t limit) {
  MachineReport report;
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2]{};
    ASSERT_EQ(syscall(SYS_capset, &header, none), 0);
    rlimit usual{};
    ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &usual), 0);
    const rlimit lowered{std::min(limit, usual.rlim_max), usual.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lowered), 0);
    const auto arena = allocate_arena(device::cpu, 1_MiB, {.lock_memory = true}, report);
    write(*arena);
    ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &usual), 0);
  }).join();
  return report.locked_memory;
}

TEST(Machine, LockingIsRefusedWithTheLimit) {
  if (sanitized) GTEST_SKIP() << "sanitizers replace mlock by nothing";
  for (const rlim_t limit : {64 << 10, 0}) {
    const Grant grant = lock_a_megabyte(limit);
    EXPECT_EQ(grant.outcome, Outcome::refused);
    for (const char* part : {"1024.00 KiB cannot be locked", "RLIMIT_MEMLOCK is "})
      EXPECT_NE(grant.detail.find(part), std::string::npos) << grant.detail;
  }
}

// --- Pinned threads

// The processors that each worker may run on.
std::vector<std::set<int>> processors_of_workers() {
  std::vector<std::set<int>> result(static_cast<std::size_t>(threads()));
  parallel_for_workers(threads(), 1, threads(), [&](int worker, std::int64_t, std::int64_t) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) result[static_cast<std::size_t>(worker)].insert(cpu);
  });
  return result;
}

TEST(Machine, PinnedThreads) {
  const auto before = processors_of_workers();
  {
    const PinnedThreads pinned;
    expect_granted_or_reason(pinned.grant());
    if (!pinned.grant().granted()) GTEST_SKIP() << pinned.grant().detail;
    // A kernel that leaves some workers idle does not change the cores of these workers.
    parallel_for_workers(2, 1, threads(), [](int, std::int64_t, std::int64_t) {});
    const auto now = processors_of_workers();
    std::set<int> used;
    for (std::size_t worker = 1; worker < now.size(); ++worker) {
      EXPECT_EQ(now[worker].size(), 1u);
      used.insert(now[worker].begin(), now[worker].end());
    }
    EXPECT_EQ(used.size(), now.size() - 1);
    // The calling thread keeps to one processor of each core.
    const std::vector<int> cores = processors_of_cores();
    EXPECT_EQ(now[0], std::set<int>(cores.begin(), cores.end()));
    EXPECT_FALSE(used.contains(*now[0].begin()));

    const PinnedThreads second;
    EXPECT_EQ(second.grant().outcome, Outcome::refused);
    EXPECT_NE(second.grant().detail.find("already"), std::string::npos);
  }
  EXPECT_EQ(processors_of_workers(), before);
  EXPECT_TRUE(PinnedThreads().grant().granted());  // again, once the first is gone
  EXPECT_EQ(processors_of_workers(), before);
}

TEST(Machine, MoreThreadsThanCoresAreNotPinned) {
  const int usual = threads(), too_many = physical_cores() + 1;
  set_threads(too_many);
  const auto before = processors_of_workers();
  const PinnedThreads pinned;
  EXPECT_EQ(pinned.grant().outcome, Outcome::refused);
  EXPECT_NE(pinned.grant().detail.find(std::to_string(too_many) + " threads"), std::string::npos);
  EXPECT_EQ(processors_of_workers(), before);
  set_threads(usual);
}

// A parallel region inside another has one thread: its workers cannot be spread.
TEST(Machine, ThreadsInsideAParallelRegionAreNotPinned) {
  if (threads() < 2) GTEST_SKIP() << "one thread only";
  const auto before = processors_of_workers();
  std::vector<Grant> grants(2);
  parallel_for_workers(2, 1, 2, [&](int worker, std::int64_t, std::int64_t) {
    if (worker == 1) grants[1] = PinnedThreads().grant();
  });
  EXPECT_EQ(grants[1].outcome, Outcome::refused);
  EXPECT_NE(grants[1].detail.find("cannot be had"), std::string::npos);
  EXPECT_EQ(processors_of_workers(), before);
}

}  // namespace
}  // namespace ebb::test
