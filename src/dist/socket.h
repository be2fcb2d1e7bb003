// TCP sockets that belong to somebody, and transfers on them that end by a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace ebb::dist {

using Clock = std::chrono::steady_clock;
inline Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) close(), descriptor_ = std::exchange(other.descriptor_, -1);
    return *this;
  }

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close();

 private:
  int descriptor_ = -1;
};

// Connects, trying again until the deadline: the other side may not listen yet. Empty if nothing
// answers.
Socket connect_to(const std::string& address, int port, Clock::time_point deadline);
// The next connection; empty at the deadline.
Socket accept_from(const Socket& listener, Clock::time_point deadline);

// All bytes, or false: the other side has closed, or the deadline is over.
bool send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point deadline);
bool receive_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point deadline);

// Makes transfers return at once, and sends small messages without delay.
void prepare(const Socket& socket);
// The numeric address of the other end.
std::string peer_address(const Socket& socket);
int port_of(const Socket& socket);

}  // namespace ebb::dist
