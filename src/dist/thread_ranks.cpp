// Ranks that are threads of one process: an exchange copies from the sender's memory.
#include <fmt/core.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>

#include "ebb/dist/ranks.h"

namespace ebb::dist {
namespace {

struct Meeting {
  explicit Meeting(int count) : offers(static_cast<std::size_t>(count)) {}

  struct Offer {
    std::span<const Communicator::Sent> sent;
    std::string_view collective;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Offer> offers;  // by rank
  std::size_t arrived = 0;
  std::uint64_t phase = 0;  // grows when all have arrived
  int lost = -1;            // a rank that was destroyed

  // Returns when all ranks are here.
  void wait(std::unique_lock<std::mutex>& lock, std::string_view collective) {
    const std::uint64_t own = phase;
    if (++arrived == offers.size()) {
      arrived = 0, ++phase;
      changed.notify_all();
      return;
    }
    changed.wait(lock, [&] { return phase != own || lost >= 0; });
    if (phase == own)
      throw RankError(
          lost, fmt::format("rank {} was lost in {}: its thread has ended", lost, collective));
  }
};

class ThreadRanks final : public Communicator {
 public:
  ThreadRanks(int rank, int size, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, size), meeting_(std::move(meeting)) {}
  ~ThreadRanks() override {
    const std::lock_guard lock(meeting_->mutex);
    if (meeting_->lost < 0) meeting_->lost = rank();
    meeting_->changed.notify_all();
  }
  std::string_view transport() const override { return "threads"; }

 private:
  void transfer(std::span<const Sent> send, std::span<const Received> receive,
                std::string_view collective) override {
    Meeting& m = *meeting_;
    const std::size_t own = static_cast<std::size_t>(rank());
    std::unique_lock lock(m.mutex);
    if (m.lost >= 0)
      throw RankError(
          m.lost, fmt::format("rank {} was lost in {}: its thread has ended", m.lost, collective));
    m.offers[own] = {send, collective};
    m.wait(lock, collective);
    lock.unlock();
    std::optional<RankError> failure;
    for (std::size_t r = 0; r < receive.size(); ++r) {
      if (r == own) continue;
      const Sent from = m.offers[r].sent[own];
      if (m.offers[r].collective != collective || from.size() != receive[r].size())
        failure.emplace(
            static_cast<int>(r),
            fmt::format("rank {} does something else: this rank is in {} and expects {} "
                        "bytes, but that rank is in {} and sends {}",
                        r, collective, receive[r].size(), m.offers[r].collective, from.size()));
      else if (!from.empty())
        std::memcpy(receive[r].data(), from.data(), from.size());
    }
    // What this rank offers must last until all have read it, also where it fails.
    lock.lock();
    m.wait(lock, collective);
    if (failure) throw *failure;
  }

  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> thread_ranks(int count) {
  const auto meeting = std::make_shared<Meeting>(count);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int r = 0; r < count; ++r) ranks.push_back(std::make_shared<ThreadRanks>(r, count, meeting));
  return ranks;
}

}  // namespace ebb::dist
