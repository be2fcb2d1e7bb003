#include "ebb/communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace ebb {

Communicator::Communicator(int rank, int size)
    : rank_(rank),
      size_(size),
      sent_(static_cast<std::size_t>(size)),
      received_(static_cast<std::size_t>(size)) {
  if (size < 1 || rank < 0 || rank >= size)
    throw ValueError(fmt::format("rank {} of {}: ranks are counted from 0", rank, size));
}

void Communicator::check_alive(std::string_view) const {}

void Communicator::exchange(std::span<const Sent> send, std::span<const Received> receive,
                            std::string_view collective) {
  const auto begin = std::chrono::steady_clock::now();
  if (size_ > 1) transfer(send, receive, collective);
  for (std::size_t r = 0; r < send.size(); ++r)
    if (static_cast<int>(r) != rank_) bytes_sent_ += static_cast<std::int64_t>(send[r].size());
  waited_ms_ +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void Communicator::all_gather(Sent own, Received all, std::string_view collective) {
  for (std::size_t r = 0; r < sent_.size(); ++r) {
    sent_[r] = own;
    received_[r] = all.subspan(r * own.size(), own.size());
  }
  if (!own.empty())
    std::memmove(received_[static_cast<std::size_t>(rank_)].data(), own.data(), own.size());
  exchange(sent_, received_, collective);
}

std::vector<std::string> Communicator::all_gather(const std::string& own,
                                                  std::string_view collective) {
  const std::size_t count = static_cast<std::size_t>(size_);
  const std::uint64_t length = own.size();
  std::vector<std::uint64_t> lengths(count);
  all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)),
             collective);
  constexpr std::uint64_t most = 1u << 30;
  std::vector<std::string> all(count);
  for (std::size_t r = 0; r < count; ++r) {
    if (lengths[r] > most)
      throw RankError(static_cast<int>(r), fmt::format("{}: rank {} announces a text of {} bytes",
                                                       collective, r, lengths[r]));
    all[r].resize(lengths[r]);
    sent_[r] = std::as_bytes(std::span(own));
    received_[r] = std::as_writable_bytes(std::span(all[r]));
  }
  all[static_cast<std::size_t>(rank_)] = own;
  exchange(sent_, received_, collective);
  return all;
}

void Communicator::broadcast(Received bytes, int root, std::string_view collective) {
  std::fill(sent_.begin(), sent_.end(), Sent{});
  std::fill(received_.begin(), received_.end(), Received{});
  if (rank_ == root)
    std::fill(sent_.begin(), sent_.end(), Sent(bytes));
  else
    received_[static_cast<std::size_t>(root)] = bytes;
  exchange(sent_, received_, collective);
}

std::string Communicator::broadcast(const std::string& text, int root,
                                    std::string_view collective) {
  std::uint64_t length = text.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root, collective);
  std::string result = rank_ == root ? text : std::string(length, '\0');
  broadcast(std::as_writable_bytes(std::span(result)), root, collective);
  return result;
}

void Communicator::barrier(std::string_view collective) {
  const std::byte own{};
  std::vector<std::byte> all(static_cast<std::size_t>(size_));
  all_gather(std::span(&own, 1), all, collective);
}

}  // namespace ebb
