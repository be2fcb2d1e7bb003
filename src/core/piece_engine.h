// Moves pieces of transfers between memory and a file, many at a time. OffloadFile splits transfers
// into pieces and joins their results.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/unnamed_file.h"

namespace ebb {

enum class Direction : std::uint8_t { read, write };

struct Piece {
  Direction direction = Direction::read;
  std::byte* memory = nullptr;  // not changed by a write
  Bytes size, offset;           // multiples of the file's alignment
};

struct PieceEnd {
  int piece = 0;            // as given to start()
  std::int64_t result = 0;  // bytes moved, which may be fewer than wanted; or -errno
  std::chrono::steady_clock::time_point time;
};

// Called by one thread at a time. All pieces must have ended before the engine is destroyed.
class PieceEngine {
 public:
  virtual ~PieceEngine() = default;
  virtual std::string_view name() const = 0;

  virtual int capacity() const = 0;  // pieces in flight at most
  // `number` in [0, capacity()) is not in flight. The piece may wait for flush().
  virtual void start(int number, const Piece& piece) noexcept = 0;
  virtual void flush() noexcept = 0;

  // A piece that has ended, if there is one.
  virtual std::optional<PieceEnd> poll() noexcept = 0;
  // Waits for one; at least one must be in flight.
  virtual PieceEnd wait() noexcept = 0;
};

// pread and pwrite in threads of its own.
std::unique_ptr<PieceEngine> make_piece_threads(const UnnamedFile& file);
// io_uring. Only for a file that bypasses the page cache: through the cache the kernel would use
// threads too, and pieces would not be dropped from it. Throws a FileError that tells why it cannot
// be used.
std::unique_ptr<PieceEngine> make_piece_uring(const UnnamedFile& file);

}  // namespace ebb
