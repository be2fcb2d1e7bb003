#include "core/offload_file.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "core/piece_engine.h"
#include "core/unnamed_file.h"
#include "ebb/error.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;
using Method = OffloadFile::Method;

// bench/disk.cpp: large enough for the full rate of a disk, small enough for several in flight.
constexpr Bytes largest_piece = 4_MiB;

struct Transfer {
  std::uint64_t number = 0;  // its ticket's; 0: this place is free
  Direction direction = Direction::read;
  std::byte* memory = nullptr;
  Bytes size, offset;
  Bytes started = {};  // bytes that were given to the engine
  int in_flight = 0;
  bool failed = false;
  Piece failed_piece = {};  // what was left of the first piece that failed
  int failed_error = 0;     // its errno; 0: nothing more could be moved

  bool all_started() const { return failed || started == size; }
  bool ended() const { return all_started() && in_flight == 0; }
};

struct PieceInFlight {
  Piece rest;  // what has not been moved yet
  int transfer = 0;
};

// Places of transfers that have pieces to start, oldest first.
class Waiting {
 public:
  explicit Waiting(int capacity) : places_(static_cast<std::size_t>(capacity)) {}
  bool empty() const { return count_ == 0; }
  int front() const { return places_[first_]; }
  void push(int place) { places_[(first_ + count_++) % places_.size()] = place; }
  void pop() { first_ = (first_ + 1) % places_.size(), --count_; }
  void clear() { count_ = 0; }

 private:
  std::vector<int> places_;
  std::size_t first_ = 0, count_ = 0;
};

// Bytes moved in one direction, and when there was something in flight.
struct Traffic {
  Bytes moved;
  int in_flight = 0;
  Clock::time_point busy_since;
  Clock::duration busy{};

  void start(Clock::time_point now) {
    if (in_flight++ == 0) busy_since = now;
  }
  void end(Clock::time_point now) {
    if (--in_flight == 0) busy += now - busy_since;
  }
  double seconds() const {
    const Clock::duration current =
        in_flight > 0 ? Clock::now() - busy_since : Clock::duration::zero();
    return std::chrono::duration<double>(busy + current).count();
  }
};

std::size_t index(Direction direction) { return static_cast<std::size_t>(direction); }

std::string_view verb(Direction direction) {
  return direction == Direction::read ? "read" : "write";
}

std::unique_ptr<PieceEngine> make_engine(const UnnamedFile& file, Method method) {
  if (method == Method::io_uring) return make_piece_uring(file);
  if (method == Method::automatic && file.direct()) {
    try {
      return make_piece_uring(file);
    } catch (const FileError&) {
      // Threads do the same work.
    }
  }
  return make_piece_threads(file);
}

}  // namespace

class OffloadFile::State {
 public:
  State(const std::filesystem::path& folder, Bytes size, int max_pending, Method method)
      : file_(folder, size,
              method == Method::buffered_threads ? UnnamedFile::Cache::use
                                                 : UnnamedFile::Cache::bypass_if_possible),
        engine_(make_engine(file_, method)),
        transfers_(static_cast<std::size_t>(max_pending)),
        pieces_(static_cast<std::size_t>(engine_->capacity())),
        waiting_{Waiting(max_pending), Waiting(max_pending)} {
    for (int i = engine_->capacity(); i-- > 0;) free_pieces_.push_back(i);
  }

  ~State() {
    for (Waiting& direction : waiting_) direction.clear();
    while (pieces_in_flight() > 0) end_piece(engine_->wait());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const UnnamedFile& file() const { return file_; }
  const PieceEngine& engine() const { return *engine_; }
  const Traffic& traffic(Direction direction) const { return traffic_[index(direction)]; }

  Ticket start(Direction direction, std::byte* memory, std::size_t size, Bytes offset) {
    check(direction, memory, size, offset);
    const int place = free_place();
    transfers_[static_cast<std::size_t>(place)] = {.number = ++last_number_,
                                                   .direction = direction,
                                                   .memory = memory,
                                                   .size = {static_cast<std::int64_t>(size)},
                                                   .offset = offset};
    if (size > 0) waiting_[index(direction)].push(place);
    advance();
    return {last_number_};
  }

  void wait(Ticket ticket) {
    Transfer* const transfer = find(ticket);
    if (transfer == nullptr) return;
    finish(*transfer);
    release(*transfer);
  }

  bool done(Ticket ticket) {
    advance();
    const Transfer* const transfer = find(ticket);
    return transfer == nullptr || transfer->ended();
  }

  void wait_all() noexcept {
    for (Transfer& transfer : transfers_)
      if (transfer.number != 0) finish(transfer);
  }

 private:
  // Collects the pieces that have ended and starts others in their place.
  void advance() noexcept {
    while (const auto end = engine_->poll()) end_piece(*end);
    start_pieces();
  }

  // Until all pieces of the transfer have ended.
  void finish(Transfer& transfer) noexcept {
    advance();
    while (!transfer.ended()) {
      end_piece(engine_->wait());
      advance();
    }
  }

  void start_pieces() noexcept {
    const Clock::time_point now = Clock::now();
    while (!free_pieces_.empty()) {
      const int place = next_to_start();
      if (place < 0) break;
      Transfer& transfer = transfers_[static_cast<std::size_t>(place)];
      const int number = free_pieces_.back();
      free_pieces_.pop_back();
      PieceInFlight& piece = pieces_[static_cast<std::size_t>(number)];
      piece = {{transfer.direction, transfer.memory + transfer.started.count,
                std::min(largest_piece, transfer.size - transfer.started),
                transfer.offset + transfer.started},
               place};
      transfer.started += piece.rest.size;
      ++transfer.in_flight;
      traffic_[index(transfer.direction)].start(now);
      engine_->start(number, piece.rest);
    }
    engine_->flush();
  }

  // Alternates reads and writes, so that neither direction waits for all of the other.
  int next_to_start() noexcept {
    for (int attempt = 0; attempt < 2; ++attempt) {
      turn_ = turn_ == Direction::read ? Direction::write : Direction::read;
      forget_started(turn_);
      if (const Waiting& waiting = waiting_[index(turn_)]; !waiting.empty()) return waiting.front();
    }
    return -1;
  }

  // Pieces start in order, so transfers that have none left are at the front.
  void forget_started(Direction direction) noexcept {
    Waiting& waiting = waiting_[index(direction)];
    while (!waiting.empty() && transfers_[static_cast<std::size_t>(waiting.front())].all_started())
      waiting.pop();
  }

  void end_piece(const PieceEnd& end) noexcept {
    PieceInFlight& piece = pieces_[static_cast<std::size_t>(end.piece)];
    Transfer& transfer = transfers_[static_cast<std::size_t>(piece.transfer)];
    Traffic& traffic = traffic_[index(transfer.direction)];
    bool again = end.result == -EINTR || end.result == -EAGAIN;
    // A read may end with the file at a place that is not a multiple of the alignment.
    const bool whole = end.result > 0 && end.result % file_.alignment().count == 0;
    if (whole) {
      const Bytes moved{end.result};
      traffic.moved += moved;
      piece.rest.memory += moved.count;
      piece.rest.offset += moved;
      piece.rest.size -= moved;
      again = piece.rest.size > 0_B;
    }
    if (again) {
      engine_->start(end.piece, piece.rest);
      engine_->flush();
      return;
    }
    if (!whole && !transfer.failed) {
      transfer.failed = true;
      transfer.failed_piece = piece.rest;
      transfer.failed_error = end.result < 0 ? static_cast<int>(-end.result) : 0;
    }
    --transfer.in_flight;
    traffic.end(end.time);
    free_pieces_.push_back(end.piece);
  }

  // Null if the transfer has been waited for, or has succeeded and given its place to another.
  Transfer* find(Ticket ticket) {
    if (ticket.number == 0 || ticket.number > last_number_)
      throw ValueError(
          fmt::format("waiting for transfer {} of the offload file in {}, which has "
                      "started transfers 1 to {}",
                      ticket.number, file_.folder().string(), last_number_));
    const auto at = std::find_if(transfers_.begin(), transfers_.end(),
                                 [&](const Transfer& t) { return t.number == ticket.number; });
    return at == transfers_.end() ? nullptr : &*at;
  }

  int free_place() {
    for (;;) {
      Transfer *oldest = nullptr, *oldest_failed = nullptr;
      for (Transfer& transfer : transfers_) {
        if (transfer.number == 0) return static_cast<int>(&transfer - transfers_.data());
        Transfer*& known = transfer.failed ? oldest_failed : oldest;
        if (known == nullptr || transfer.number < known->number) known = &transfer;
      }
      Transfer& leaves = oldest != nullptr ? *oldest : *oldest_failed;
      finish(leaves);
      // A transfer that fails while it is waited for here keeps its place and its error.
      if (!leaves.failed || oldest == nullptr) release(leaves);
    }
  }

  // Throws the transfer's error, if it has one.
  void release(Transfer& transfer) {
    forget_started(transfer.direction);  // its place will be used again
    const Transfer ended = transfer;
    transfer.number = 0;
    if (ended.failed) throw FileError(error_text(ended));
  }

  std::string error_text(const Transfer& transfer) const {
    const Piece& piece = transfer.failed_piece;
    const std::string folder = file_.folder().string();
    struct stat facts {};
    if (transfer.failed_error == 0 && piece.direction == Direction::read &&
        fstat(file_.descriptor(), &facts) == 0)
      return fmt::format(
          "the offload file in {} was cut: expected {} at byte {}, but it ends at byte {} instead "
          "of {}",
          folder, to_string(piece.size), piece.offset.count, facts.st_size, file_.size().count);
    return fmt::format(
        "cannot {} {} at byte {} of the offload file in {}: {}", verb(piece.direction),
        to_string(piece.size), piece.offset.count, folder,
        std::generic_category().message(transfer.failed_error != 0 ? transfer.failed_error : EIO));
  }

  void check(Direction direction, const std::byte* memory, std::size_t size, Bytes offset) const {
    const auto alignment = static_cast<std::uintptr_t>(file_.alignment().count);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto place = [&] {
      return fmt::format("cannot {} {} B at byte {} of the offload file in {}", verb(direction),
                         size, offset.count, file_.folder().string());
    };
    if (size % alignment != 0 || address % alignment != 0 ||
        offset.count % static_cast<std::int64_t>(alignment) != 0)
      throw ValueError(fmt::format("{}: size, offset and address ({:#x}) must be multiples of {} B",
                                   place(), address, alignment));
    if (offset < 0_B || offset > file_.size() ||
        size > static_cast<std::size_t>((file_.size() - offset).count))
      throw ValueError(fmt::format("{}: it has {} B", place(), file_.size().count));
  }

  int pieces_in_flight() const { return traffic_[0].in_flight + traffic_[1].in_flight; }

  UnnamedFile file_;
  std::unique_ptr<PieceEngine> engine_;
  std::uint64_t last_number_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<PieceInFlight> pieces_;  // by the number the engine knows them by
  std::vector<int> free_pieces_;       // numbers that are free
  std::array<Waiting, 2> waiting_;     // by direction
  std::array<Traffic, 2> traffic_;     // by direction
  Direction turn_ = Direction::write;  // the direction that started a piece last
};

OffloadFile::OffloadFile(const std::filesystem::path& folder, Bytes size, int max_pending,
                         Method method) {
  if (max_pending < 1)
    throw ValueError(fmt::format(
        "an offload file with at most {} pending transfers: expected 1 or more", max_pending));
  state_ = std::make_unique<State>(folder, size, max_pending, method);
}

OffloadFile::~OffloadFile() = default;
OffloadFile::OffloadFile(OffloadFile&&) noexcept = default;
OffloadFile& OffloadFile::operator=(OffloadFile&&) noexcept = default;

Bytes OffloadFile::size() const { return state_->file().size(); }
Bytes OffloadFile::alignment() const { return state_->file().alignment(); }
bool OffloadFile::direct() const { return state_->file().direct(); }
int OffloadFile::descriptor() const { return state_->file().descriptor(); }
std::string_view OffloadFile::method() const { return state_->engine().name(); }
Bytes OffloadFile::piece_size() { return largest_piece; }
int OffloadFile::pieces_in_flight() const { return state_->engine().capacity(); }

OffloadFile::Ticket OffloadFile::read(std::span<std::byte> to, Bytes offset) {
  return state_->start(Direction::read, to.data(), to.size(), offset);
}

OffloadFile::Ticket OffloadFile::write(std::span<const std::byte> from, Bytes offset) {
  // For a write, engines only read the memory.
  return state_->start(Direction::write, const_cast<std::byte*>(from.data()), from.size(), offset);
}

void OffloadFile::wait(Ticket ticket) { state_->wait(ticket); }
bool OffloadFile::done(Ticket ticket) { return state_->done(ticket); }
void OffloadFile::wait_all() noexcept { state_->wait_all(); }

OffloadFile::Moved OffloadFile::moved() const {
  const Traffic &read = state_->traffic(Direction::read),
                &write = state_->traffic(Direction::write);
  return {read.moved, write.moved, read.seconds(), write.seconds()};
}

}  // namespace ebb
