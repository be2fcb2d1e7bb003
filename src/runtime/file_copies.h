// Runs the copies of a step between memory and files, on a thread of its own. The thread that
// computes only tells how far it is, and waits where it needs a copy to have ended.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/offload_file.h"
#include "ebb/bytes.h"
#include "ebb/plan.h"

namespace ebb {

// A copy of whole pages.
struct FileTransfer {
  OffloadFile* file = nullptr;  // null: the instruction is no such copy
  Bytes offset;
  std::span<std::byte> memory;
  bool fetch = false;
  std::span<const InstructionId> waits = {};  // instructions before it that must have ended
};

class FileCopies {
 public:
  // When a copy starts: as soon as everything that it waits for has ended and the copies before it
  // in its direction have started; or not before the computation has come to it, so that it runs
  // alone and can be timed.
  enum class Start : bool { when_possible, when_reached };

  FileCopies() = default;
  ~FileCopies();
  FileCopies(const FileCopies&) = delete;
  FileCopies& operator=(const FileCopies&) = delete;

  // Begins a step with these copies, by instruction. They must stay until wait_all(). The first
  // step with a copy starts the thread; later ones allocate nothing.
  void begin(std::span<const FileTransfer> copies, Start start = Start::when_possible);
  // All instructions before this one that are no copies have ended.
  void reach(std::size_t instruction);
  // Returns when that copy and all before it in the same direction have ended. Throws the first
  // error of the step; after an error no further copy starts. At once for what is no copy.
  void wait(std::size_t instruction);
  // Lets no further copy start, and returns when the others have ended.
  void wait_all() noexcept;
  // The number of the last copy that was started, plus 1.
  std::size_t started() const;

 private:
  // Copies of one direction, in their order.
  struct Queue {
    std::vector<std::size_t> copies;  // instructions
    std::size_t started = 0;          // of these
    std::size_t ended = 0;            // of these, all before them have ended as well
  };
  struct Copy {
    std::size_t place = 0;  // in its queue
    bool ended = false;
    OffloadFile::Ticket ticket = {};
  };

  Queue& queue_of(const FileTransfer& transfer) { return queues_[transfer.fetch ? 1 : 0]; }
  bool has_ended(std::size_t instruction);  // also all copies before it
  bool is_ready(std::size_t instruction);
  Queue* next_ready();
  void work();
  void issue(Queue& queue, std::unique_lock<std::mutex>& lock);
  bool collect(std::unique_lock<std::mutex>& lock);  // whether any copy has ended
  void end(std::size_t instruction, const std::exception_ptr& error);

  std::span<const FileTransfer> transfers_;  // empty in a step without copies
  mutable std::mutex mutex_;
  std::condition_variable wake_;   // the thread
  std::condition_variable ended_;  // who waits for copies
  Start start_ = Start::when_possible;
  std::vector<Copy> copies_;  // by instruction
  std::array<Queue, 2> queues_;
  std::size_t reached_ = 0;
  std::size_t last_started_ = 0;  // plus 1
  int in_flight_ = 0;
  int waiting_ = 0;  // calls of wait() that have not returned
  bool idle_ = false, stopping_ = false, no_more_ = false;
  std::exception_ptr error_;          // the first of the step
  std::vector<std::size_t> running_;  // the thread's own
  std::thread thread_;
};

}  // namespace ebb
