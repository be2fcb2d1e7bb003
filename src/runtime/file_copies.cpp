#include "runtime/file_copies.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ebb {
namespace {

// Fewer than a file's pending transfers, so that starting one never waits for another.
constexpr std::size_t most_running = 48;

}  // namespace

FileCopies::~FileCopies() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = no_more_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void FileCopies::begin(std::span<const FileTransfer> copies, Start start) {
  const auto is_copy = [](const FileTransfer& transfer) { return transfer.file != nullptr; };
  const bool any = std::any_of(copies.begin(), copies.end(), is_copy);
  {
    const std::lock_guard lock(mutex_);
    transfers_ = any ? copies : std::span<const FileTransfer>{};
    start_ = start;
    copies_.assign(transfers_.size(), {});
    running_.reserve(most_running);
    for (Queue& queue : queues_) {
      queue.copies.clear(), queue.copies.reserve(transfers_.size());
      queue.started = queue.ended = 0;
    }
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      if (!transfers_[i].file) continue;
      Queue& queue = queue_of(transfers_[i]);
      copies_[i].place = queue.copies.size();
      queue.copies.push_back(i);
    }
    reached_ = last_started_ = 0;
    error_ = nullptr;
    no_more_ = false;
  }
  if (any && !thread_.joinable()) thread_ = std::thread([this] { work(); });
  wake_.notify_one();
}

void FileCopies::reach(std::size_t instruction) {
  if (transfers_.empty()) return;
  bool idle = false;
  {
    const std::lock_guard lock(mutex_);
    reached_ = std::max(reached_, instruction);
    idle = idle_;
  }
  if (idle) wake_.notify_one();
}

// The pieces of a file's transfers end in any order, but a lane of a plan keeps its own: who waits
// for a copy relies on all copies before it in the same lane.
bool FileCopies::has_ended(std::size_t instruction) {
  return queue_of(transfers_[instruction]).ended > copies_[instruction].place;
}

void FileCopies::wait(std::size_t instruction) {
  if (instruction >= transfers_.size() || !transfers_[instruction].file) return;
  std::unique_lock lock(mutex_);
  ++waiting_;
  ended_.wait(lock, [&] { return error_ || has_ended(instruction); });
  --waiting_;
  if (error_) std::rethrow_exception(error_);
}

void FileCopies::wait_all() noexcept {
  std::unique_lock lock(mutex_);
  no_more_ = true;
  ended_.wait(lock, [&] { return in_flight_ == 0; });
}

std::size_t FileCopies::started() const {
  const std::lock_guard lock(mutex_);
  return last_started_;
}

bool FileCopies::is_ready(std::size_t instruction) {
  if (start_ == Start::when_reached && reached_ < instruction) return false;
  return std::all_of(transfers_[instruction].waits.begin(), transfers_[instruction].waits.end(),
                     [&](InstructionId other) {
                       return transfers_[other.index()].file ? has_ended(other.index())
                                                             : reached_ > other.index();
                     });
}

FileCopies::Queue* FileCopies::next_ready() {
  if (no_more_ || error_ || running_.size() >= most_running) return nullptr;
  for (Queue& queue : queues_)
    if (queue.started < queue.copies.size() && is_ready(queue.copies[queue.started])) return &queue;
  return nullptr;
}

// While copies run, they are asked often: a file starts further pieces only when it is called.
void FileCopies::work() {
  using namespace std::chrono_literals;
  std::unique_lock lock(mutex_);
  while (!stopping_ || !running_.empty()) {
    if (Queue* const queue = next_ready()) {
      issue(*queue, lock);
      continue;
    }
    if (running_.empty()) {
      idle_ = true;
      wake_.wait(lock, [&] { return stopping_ || next_ready(); });
      idle_ = false;
      continue;
    }
    if (!collect(lock)) wake_.wait_for(lock, waiting_ > 0 ? 100us : 500us);
  }
}

void FileCopies::issue(Queue& queue, std::unique_lock<std::mutex>& lock) {
  const std::size_t instruction = queue.copies[queue.started++];
  const FileTransfer transfer = transfers_[instruction];
  last_started_ = std::max(last_started_, instruction + 1);
  ++in_flight_;
  lock.unlock();
  OffloadFile::Ticket ticket;
  std::exception_ptr error;
  try {
    ticket = transfer.fetch ? transfer.file->read(transfer.memory, transfer.offset)
                            : transfer.file->write(transfer.memory, transfer.offset);
    running_.push_back(instruction);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  copies_[instruction].ticket = ticket;
  if (error) end(instruction, error);
}

bool FileCopies::collect(std::unique_lock<std::mutex>& lock) {
  const std::size_t before = running_.size();
  std::erase_if(running_, [&](std::size_t instruction) {
    OffloadFile& file = *transfers_[instruction].file;
    const OffloadFile::Ticket ticket = copies_[instruction].ticket;
    lock.unlock();
    std::exception_ptr error;
    const bool done = file.done(ticket);
    try {
      if (done) file.wait(ticket);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (done) end(instruction, error);
    return done;
  });
  return running_.size() < before;
}

void FileCopies::end(std::size_t instruction, const std::exception_ptr& error) {
  copies_[instruction].ended = true;
  --in_flight_;
  Queue& queue = queue_of(transfers_[instruction]);
  while (queue.ended < queue.started && copies_[queue.copies[queue.ended]].ended) ++queue.ended;
  if (error && !error_) error_ = error;
  ended_.notify_all();
}

}  // namespace ebb
