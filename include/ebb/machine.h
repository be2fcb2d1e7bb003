// What a program may ask of the machine beyond plain memory and plain threads. Nothing is asked for
// by default. What cannot be had is told in a report, with the reason, and never ends a run.
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

// What became of a wish.
struct Grant {
  enum class Outcome : std::uint8_t { not_asked, granted, refused };
  Outcome outcome = Outcome::not_asked;
  std::string detail = {};  // what was granted, or why it was refused

  bool granted() const { return outcome == Outcome::granted; }
};

struct MachineReport {
  Grant huge_pages, locked_memory, pinned_threads;
};
std::string to_string(const MachineReport& report);  // a line for each wish

// Storage for an arena, with what can be had of the wishes for memory; the report says of them what
// became of each.
std::shared_ptr<Storage> allocate_arena(Device device, Bytes size, const MachineOptions& options,
                                        MachineReport& report);

// While it lives, each worker thread of the thread that made it stays on a core of its own; then
// all may run where they might before. Only one lives at a time: others are refused.
//
// The thread that made it starts on the first core but may use all: a thread inherits the
// processors of the one that starts it, and OpenMP's library ends workers that a parallel region
// does not need and starts others for the next. Those should not all meet on the first core.
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

  std::vector<Saved> saved_;  // the processors that each thread might use before
  Grant grant_;
};

}  // namespace ebb
