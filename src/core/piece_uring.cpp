#include <fmt/core.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/piece_engine.h"
#include "ebb/error.h"

#ifdef EBB_HAS_URING
#include <liburing.h>
#endif

namespace ebb {
namespace {

[[noreturn]] void refuse(const UnnamedFile& file, const std::string& why) {
  throw FileError(fmt::format("cannot use io_uring for the offload file in {}: {}",
                              file.folder().string(), why));
}

#ifdef EBB_HAS_URING

using Clock = std::chrono::steady_clock;

// Four reach a disk's full rate (bench/disk.cpp). More keep the disk busy while the caller does
// other work.
constexpr int in_flight_at_most = 32;

std::string text_of(int error) { return std::generic_category().message(error); }

class PieceUring final : public PieceEngine {
 public:
  explicit PieceUring(const UnnamedFile& file) : file_(file), ring_(file) {
    unsubmitted_.reserve(in_flight_at_most);
    refused_.reserve(in_flight_at_most);
  }

  std::string_view name() const override { return "io_uring"; }
  int capacity() const override { return in_flight_at_most; }

  void start(int number, const Piece& piece) noexcept override {
    if (broken_ != 0) return refused_.push_back(number);
    // There always is an entry: the queue has room for all pieces that may be in flight.
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_.ring);
    const auto size = static_cast<unsigned>(piece.size.count);
    const auto offset = static_cast<std::uint64_t>(piece.offset.count);
    if (piece.direction == Direction::read)
      io_uring_prep_read(entry, file_.descriptor(), piece.memory, size, offset);
    else
      io_uring_prep_write(entry, file_.descriptor(), piece.memory, size, offset);
    io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(number));
    unsubmitted_.push_back(number);
  }

  void flush() noexcept override {
    while (!unsubmitted_.empty()) {
      const int taken = io_uring_submit(&ring_.ring);
      if (taken > 0) {
        unsubmitted_.erase(unsubmitted_.begin(), unsubmitted_.begin() + taken);
      } else if (taken == 0 || taken == -EINTR || taken == -EAGAIN || taken == -EBUSY) {
        std::this_thread::yield();  // the kernel is short of memory for requests
      } else {
        broken_ = -taken;
        refused_.insert(refused_.end(), unsubmitted_.begin(), unsubmitted_.end());
        unsubmitted_.clear();
      }
    }
  }

  std::optional<PieceEnd> poll() noexcept override {
    if (!refused_.empty()) return take_refused();
    io_uring_cqe* end = nullptr;
    if (io_uring_peek_cqe(&ring_.ring, &end) != 0) return std::nullopt;
    return take(end);
  }

  PieceEnd wait() noexcept override {
    if (!refused_.empty()) return take_refused();
    io_uring_cqe* end = nullptr;
    // A signal may interrupt the call. The memory belongs to the kernel until the piece has ended,
    // so the only way is to wait again.
    while (io_uring_wait_cqe(&ring_.ring, &end) != 0) std::this_thread::yield();
    return take(end);
  }

 private:
  struct Ring {
    io_uring ring{};

    explicit Ring(const UnnamedFile& file) {
      if (const int error = -io_uring_queue_init(in_flight_at_most, &ring, 0); error != 0)
        refuse(file, text_of(error));
      try {
        try_out(file);
      } catch (...) {
        io_uring_queue_exit(&ring);
        throw;
      }
    }
    ~Ring() { io_uring_queue_exit(&ring); }
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // Some sandboxes allow a ring to be made but forbid its use; kernels before 5.6 cannot read
    // with it.
    void try_out(const UnnamedFile& file) {
      io_uring_probe* const known = io_uring_get_probe_ring(&ring);
      const bool reads_and_writes = known != nullptr &&
                                    io_uring_opcode_supported(known, IORING_OP_READ) != 0 &&
                                    io_uring_opcode_supported(known, IORING_OP_WRITE) != 0;
      if (known != nullptr) io_uring_free_probe(known);
      if (!reads_and_writes) refuse(file, "the kernel's cannot read and write");
      io_uring_prep_nop(io_uring_get_sqe(&ring));
      int result = io_uring_submit(&ring);
      io_uring_cqe* end = nullptr;
      if (result == 1) result = io_uring_wait_cqe(&ring, &end);
      if (end == nullptr) refuse(file, text_of(result < 0 ? -result : EIO));
      io_uring_cqe_seen(&ring, end);
    }
  };

  PieceEnd take(io_uring_cqe* end) noexcept {
    const PieceEnd result{static_cast<int>(io_uring_cqe_get_data64(end)), end->res, Clock::now()};
    io_uring_cqe_seen(&ring_.ring, end);
    return result;
  }

  PieceEnd take_refused() noexcept {
    const int number = refused_.back();
    refused_.pop_back();
    return {number, -broken_, Clock::now()};
  }

  const UnnamedFile& file_;
  Ring ring_;
  std::vector<int> unsubmitted_;  // started, but not yet given to the kernel
  std::vector<int> refused_;      // the kernel did not take them
  int broken_ = 0;  // the error after which the kernel takes no more requests; 0: none
};

#endif

}  // namespace

std::unique_ptr<PieceEngine> make_piece_uring(const UnnamedFile& file) {
  if (!file.direct()) refuse(file, "its file system does not bypass the page cache");
#ifdef EBB_HAS_URING
  return std::make_unique<PieceUring>(file);
#else
  refuse(file, "liburing was not found when ebb was built");
#endif
}

}  // namespace ebb
