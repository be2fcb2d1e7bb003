// The memory of other ranks on the same host, which the system may let this process read: one copy
// from the sender's memory to the receiver's, where a socket takes two and a share of the network's
// code. The system refuses it to other users, between containers, and where a setting forbids it
// (Yama); bytes then go through the socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ebb/communicator.h"

namespace ebb::dist {

class PeerMemory {
 public:
  // Asks all ranks; every rank calls it at the same place.
  explicit PeerMemory(Communicator& ranks);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether this rank and that one can read each other's memory: the same answer on both.
  bool readable(std::size_t rank) const { return rank < peers_.size() && peers_[rank].readable; }

  // Reads bytes at an address of that rank's process. False: it is not there any more.
  bool read(std::size_t rank, std::uint64_t address, std::span<std::byte> bytes) const;

 private:
  struct Peer {
    int process = 0;
    bool readable = false;
  };

  // What another rank must find where this one says it is.
  std::array<std::byte, 16> mark_;
  std::vector<Peer> peers_;  // by rank
};

}  // namespace ebb::dist
