#include "ebb/machine.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/backend.h"

namespace ebb {
namespace {

Grant granted(std::string what) { return {Grant::Outcome::granted, std::move(what)}; }
Grant refused(std::string why) { return {Grant::Outcome::refused, std::move(why)}; }

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Whether the kernel grants huge pages on request (madvise).
Grant huge_pages() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  const std::string enabled = first_line(folder + "enabled");
  if (enabled.empty()) return refused("the kernel has no transparent huge pages");
  if (enabled.find("[never]") != std::string::npos)
    return refused(fmt::format("transparent huge pages are off ({}enabled: {})", folder, enabled));
  if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) > 0)
    return refused("transparent huge pages are off for this process (PR_SET_THP_DISABLE)");
  const std::string size = first_line(folder + "hpage_pmd_size");
  if (size != std::to_string(huge_page.count))
    return refused(fmt::format("the machine's huge pages have {} B, not 2 MiB", size));
  return granted(fmt::format("pages of 2 MiB where the kernel finds them ({})", enabled));
}

Grant lock(const Storage& storage) {
  const std::size_t size = static_cast<std::size_t>(storage.reserved().count);
  if (mlock(storage.data(), size) == 0)
    return granted(fmt::format("{} stay in memory", to_string(storage.reserved())));
  const int error = errno;
  munlock(storage.data(), size);  // what was locked before it failed
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return refused(fmt::format("{} cannot be locked: {} (RLIMIT_MEMLOCK is {})",
                             to_string(storage.reserved()), std::strerror(error),
                             limit.rlim_cur == RLIM_INFINITY
                                 ? "unlimited"
                                 : to_string(Bytes{static_cast<std::int64_t>(limit.rlim_cur)})));
}

std::string line(const char* wish, const Grant& grant) {
  switch (grant.outcome) {
    case Grant::Outcome::not_asked:
      return fmt::format("{:<15} not asked for\n", wish);
    case Grant::Outcome::granted:
      return fmt::format("{:<15} granted: {}\n", wish, grant.detail);
    case Grant::Outcome::refused:
      break;
  }
  return fmt::format("{:<15} refused: {}\n", wish, grant.detail);
}

}  // namespace

std::string to_string(const MachineReport& report) {
  return line("huge pages", report.huge_pages) + line("locked memory", report.locked_memory) +
         line("pinned threads", report.pinned_threads);
}

std::shared_ptr<Storage> allocate_arena(Device device, Bytes size, const MachineOptions& options,
                                        MachineReport& report) {
  auto storage = Storage::allocate(device, size, options.pages());
  if (!backend_of(device).chooses_pages()) {
    const Grant refused{Grant::Outcome::refused, "the arena is on " + to_string(device)};
    report.huge_pages = options.huge_pages ? refused : Grant{};
    report.locked_memory = options.lock_memory ? refused : Grant{};
    return storage;
  }
  report.huge_pages = options.huge_pages ? huge_pages() : Grant{};
  report.locked_memory = options.lock_memory ? lock(*storage) : Grant{};
  return storage;
}

}  // namespace ebb
