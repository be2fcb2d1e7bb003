// Requests to the machine beyond plain memory and threads. None is made by default. A request that
// is not granted appears in a report with the reason, and never ends a run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/storage.h"

namespace ebb {

struct MachineOptions {
  bool huge_pages = false;   // the arena in pages of 2 MiB
  bool lock_memory = false;  // the arena always in memory, never paged out
  bool pin_threads = false;  // every worker thread on a core of its own

  // The pages a plan counts in: its arena takes Storage::reservation(size, pages()).
  PageSize pages() const { return huge_pages ? PageSize::huge : PageSize::standard; }
};

// The outcome of a request.
struct Grant {
  enum class Outcome : std::uint8_t { not_asked, granted, refused };
  Outcome outcome = Outcome::not_asked;
  std::string detail = {};  // what was granted, or why it was refused

  bool granted() const { return outcome == Outcome::granted; }
};

struct MachineReport {
  Grant huge_pages, locked_memory, pinned_threads;
};
std::string to_string(const MachineReport& report);  // one line per request

// Storage for an arena. Grants as many of the requests for memory as possible; the report has the
// outcome of each.
std::shared_ptr<Storage> allocate_arena(Device device, Bytes size, const MachineOptions& options,
                                        MachineReport& report);

// While it exists, each worker thread of the thread that made it stays on its own core; afterwards
// the previous affinities are restored. Only one may exist at a time: others are refused.
//
// The thread that made it starts on the first core but may use all: a thread inherits the
// processors of the one that starts it, and the OpenMP library may end workers that a parallel
// region does not need and start new ones later. Those must not all run on the first core.
class PinnedThreads {
 public:
  PinnedThreads();
  ~PinnedThreads();
  PinnedThreads(const PinnedThreads&) = delete;
  PinnedThreads& operator=(const PinnedThreads&) = delete;

  const Grant& grant() const { return grant_; }

 private:
  struct Saved;
  void restore();

  std::vector<Saved> saved_;  // the previous affinity of each thread
  Grant grant_;
};

}  // namespace ebb
