#include "runtime/file_copies.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ebb {

FileCopies::~FileCopies() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FileCopies::begin(std::span<const FileTransfer> copies) {
  const auto is_copy = [](const FileTransfer& transfer) { return transfer.file != nullptr; };
  if (std::none_of(copies.begin(), copies.end(), is_copy)) return;
  {
    const std::lock_guard lock(mutex_);
    transfers_ = copies;
    copies_.assign(copies.size(), {});
    requested_.clear(), requested_.reserve(copies.size());
    running_.reserve(copies.size());
    taken_ = 0;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
}

void FileCopies::start(std::size_t instruction) {
  {
    const std::lock_guard lock(mutex_);
    copies_[instruction].state = State::started;
    requested_.push_back(instruction);
  }
  changed_.notify_all();
}

// The pieces of a file's transfers end in any order, but a lane of a plan keeps its own: who waits
// for a copy relies on all copies before it in the same lane.
void FileCopies::wait(std::size_t instruction) {
  if (instruction >= copies_.size() || !transfers_[instruction].file) return;
  std::unique_lock lock(mutex_);
  for (const std::size_t earlier : requested_) {
    if (earlier > instruction || transfers_[earlier].fetch != transfers_[instruction].fetch)
      continue;
    Copy& copy = copies_[earlier];
    changed_.wait(lock, [&] { return copy.state != State::started; });
    if (copy.error) std::rethrow_exception(std::exchange(copy.error, nullptr));
  }
}

void FileCopies::wait_all() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(requested_.begin(), requested_.end(), [&](std::size_t instruction) {
      return copies_[instruction].state == State::ended;
    });
  });
}

// While copies run, they are asked often: a file starts further pieces only when it is called.
void FileCopies::work() {
  constexpr auto pause = std::chrono::microseconds(100);
  std::unique_lock lock(mutex_);
  while (!stopping_ || !running_.empty()) {
    if (taken_ < requested_.size()) {
      const std::size_t instruction = requested_[taken_++];
      lock.unlock();
      issue(instruction);
      lock.lock();
      continue;
    }
    if (running_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || taken_ < requested_.size(); });
      continue;
    }
    lock.unlock();
    const bool ended = collect();
    lock.lock();
    if (!ended) changed_.wait_for(lock, pause);
  }
}

void FileCopies::issue(std::size_t instruction) {
  const FileTransfer& transfer = transfers_[instruction];
  Copy& copy = copies_[instruction];
  try {
    copy.ticket = transfer.fetch ? transfer.file->read(transfer.memory, transfer.offset)
                                 : transfer.file->write(transfer.memory, transfer.offset);
    running_.push_back(instruction);
    return;
  } catch (...) {
    const std::lock_guard lock(mutex_);
    copy.error = std::current_exception();
    copy.state = State::ended;
  }
  changed_.notify_all();
}

bool FileCopies::collect() {
  const std::size_t before = running_.size();
  std::erase_if(running_, [&](std::size_t instruction) {
    OffloadFile& file = *transfers_[instruction].file;
    Copy& copy = copies_[instruction];
    if (!file.done(copy.ticket)) return false;
    std::exception_ptr error;
    try {
      file.wait(copy.ticket);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    copy.error = error;
    copy.state = State::ended;
    return true;
  });
  if (running_.size() == before) return false;
  changed_.notify_all();
  return true;
}

}  // namespace ebb
