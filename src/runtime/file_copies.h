// Runs the copies of a step between memory and files, on a thread of its own: the thread that
// computes only says when a copy may start, and waits where it needs one to have ended.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/offload_file.h"
#include "ebb/bytes.h"

namespace ebb {

// A copy of whole pages.
struct FileTransfer {
  OffloadFile* file = nullptr;  // null: the instruction is no such copy
  Bytes offset;
  std::span<std::byte> memory;
  bool fetch = false;
};

class FileCopies {
 public:
  FileCopies() = default;
  ~FileCopies();
  FileCopies(const FileCopies&) = delete;
  FileCopies& operator=(const FileCopies&) = delete;

  // Begins a step with these copies, by instruction. They must stay until wait_all(). The first
  // step with a copy starts the thread; later ones allocate nothing.
  void begin(std::span<const FileTransfer> copies);
  void start(std::size_t instruction);
  // Returns when that copy and all before it in the same direction have ended; throws the first
  // error of these. At once for a copy that was not started. Instructions start in their order.
  void wait(std::size_t instruction);
  void wait_all() noexcept;

 private:
  enum class State : std::uint8_t { idle, started, ended };
  struct Copy {
    State state = State::idle;
    OffloadFile::Ticket ticket;
    std::exception_ptr error;
  };

  void work();
  void issue(std::size_t instruction);
  bool collect();  // whether any copy has ended

  std::span<const FileTransfer> transfers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Copy> copies_;            // by instruction
  std::vector<std::size_t> requested_;  // instructions, in the order in which they were started
  std::size_t taken_ = 0;               // of those, by the thread
  bool stopping_ = false;
  std::vector<std::size_t> running_;  // the thread's own
  std::thread thread_;
};

}  // namespace ebb
