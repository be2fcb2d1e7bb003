#include "dist/peer_memory.h"

#include <fmt/core.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace ebb::dist {
namespace {

// Where a process is and what can be read there, as ranks tell each other.
struct Card {
  std::array<char, 80> place = {};  // of the host since its start, and of process numbers on it
  std::int64_t process = 0;
  std::uint64_t address = 0;
  std::array<std::byte, 16> mark = {};
};

std::string place_of_processes() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string host;
  std::getline(file, host);
  std::error_code none;
  const std::string numbers = std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
  return host.empty() || none ? "" : host + numbers;
}

}  // namespace

PeerMemory::PeerMemory(Communicator& ranks) : peers_(static_cast<std::size_t>(ranks.size())) {
  std::random_device random;
  for (std::byte& byte : mark_) byte = static_cast<std::byte>(random());
  Card own;
  const std::string place = place_of_processes();
  std::memcpy(own.place.data(), place.data(), std::min(place.size(), own.place.size() - 1));
  own.process = getpid(), own.mark = mark_;
  own.address = reinterpret_cast<std::uint64_t>(mark_.data());
  std::vector<Card> cards(peers_.size());
  ranks.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(cards)),
                   "the places of the ranks");
  std::vector<std::byte> found(peers_.size()), all(peers_.size() * peers_.size());
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    peers_[r].process = static_cast<int>(cards[r].process);
    std::array<std::byte, 16> seen = {};
    const bool same = !place.empty() && cards[r].place == own.place &&
                      r != static_cast<std::size_t>(ranks.rank());
    if (same && read(r, cards[r].address, seen) && seen == cards[r].mark) found[r] = std::byte{1};
  }
  ranks.all_gather(found, all, "the comparison of what ranks can read");
  const std::size_t self = static_cast<std::size_t>(ranks.rank());
  for (std::size_t r = 0; r < peers_.size(); ++r)
    peers_[r].readable = found[r] != std::byte{} && all[r * peers_.size() + self] != std::byte{};
}

bool PeerMemory::read(std::size_t rank, std::uint64_t address, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const iovec here{bytes.data(), bytes.size()},
        there{reinterpret_cast<void*>(address), bytes.size()};
    const ssize_t count = process_vm_readv(peers_[rank].process, &here, 1, &there, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    address += static_cast<std::uint64_t>(count);
  }
  return true;
}

}  // namespace ebb::dist
