// A file that holds offloaded bytes during a run, and the transfers to and from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "ebb/bytes.h"

namespace ebb {

// Used by one thread at a time, such as the I/O thread of a runner. That thread must not end before
// the transfers it started: the kernel may cancel those of io_uring with it. The file has no name,
// so a killed run leaves nothing behind.
class OffloadFile {
 public:
  // One transfer. Valid for the file that gave it.
  struct Ticket {
    std::uint64_t number = 0;  // counts transfers from 1; 0 is none
  };

  // How pieces are moved. `automatic` takes io_uring if the page cache can be bypassed and the
  // kernel permits it, otherwise threads. The others are for tests and measurements: io_uring
  // throws where it cannot be had, and buffered_threads uses the page cache on any file system.
  enum class Method : std::uint8_t { automatic, io_uring, threads, buffered_threads };

  // Reserves `size` bytes, rounded up to alignment(), in `folder`, so that no later write finds the
  // disk full. Throws a FileError that names the folder if it is missing, cannot be written or has
  // too little space. After this nothing is allocated, except for error messages.
  OffloadFile(const std::filesystem::path& folder, Bytes size, int max_pending = 64,
              Method method = Method::automatic);
  // Waits for the pieces in flight and abandons the others.
  ~OffloadFile();
  OffloadFile(OffloadFile&&) noexcept;
  OffloadFile& operator=(OffloadFile&&) noexcept;

  Bytes size() const;
  // Of offsets, sizes and memory addresses. At least 4 KiB even where the disk would take less, so
  // that a plan does not depend on the disk; more where the disk asks for more.
  Bytes alignment() const;
  // Whether the page cache is bypassed (O_DIRECT). Otherwise every written piece is flushed to the
  // disk and every moved piece dropped from the page cache, which then holds only what is in
  // flight. On tmpfs the page cache is the file, and nothing is dropped.
  bool direct() const;
  std::string_view method() const;  // "io_uring" or "threads"

  // Start a transfer, which ends when wait() for its ticket returns. Until then the memory must
  // stay, a read's must not be used, and a write's must not be changed. Transfers run in any order:
  // wait for a write before reading the same bytes. Reads and writes share the disk evenly, and
  // each direction is served in the order of the calls.
  //
  // A transfer is split into pieces of piece_size(), of which many are in flight together. The
  // first pieces_in_flight() proceed by themselves; further ones start when pieces have ended and
  // the thread is inside a call of this class.
  //
  // If max_pending transfers have not been waited for, the call first waits for the oldest one
  // without an error, whose ticket can still be waited for. If all of them have failed, it throws
  // the oldest error.
  //
  // A ValueError names a request that is not aligned or not inside the file.
  Ticket read(std::span<std::byte> to, Bytes offset);
  Ticket write(std::span<const std::byte> from, Bytes offset);

  // Throws the FileError of the transfer once, when all of its pieces have ended. A transfer that
  // has already been waited for returns at once.
  void wait(Ticket ticket);
  // Whether wait() would return or throw at once. Starts further pieces.
  bool done(Ticket ticket);
  // Waits for the end of all transfers. Errors stay for wait().
  void wait_all() noexcept;

  // Bytes of all pieces that ended, and the time during which at least one piece of that direction
  // was in flight. With io_uring a piece ends when a call of this class notices it.
  struct Moved {
    Bytes read, written;
    double read_seconds = 0.0, write_seconds = 0.0;
  };
  Moved moved() const;

  static Bytes piece_size();
  int pieces_in_flight() const;
  // For tests that damage the file.
  int descriptor() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb
