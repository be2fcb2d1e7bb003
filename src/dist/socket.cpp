#include "dist/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "ebb/dist/ranks.h"

namespace ebb::dist {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& address, int port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0)
    throw RankError(0, fmt::format("the address \"{}\" of rank 0 cannot be found: {}", address,
                                   gai_strerror(error)));
  return Addresses(list);
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1000));
}

// Whether the socket is ready before the deadline.
bool wait_for(int descriptor, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void prepare(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(socket.descriptor(), F_SETFL, fcntl(socket.descriptor(), F_GETFL) | O_NONBLOCK);
  fcntl(socket.descriptor(), F_SETFD, FD_CLOEXEC);
}

Socket connect_to(const std::string& address, int port, Clock::time_point deadline) {
  const Addresses all = resolve(address, port, 0);
  do {
    for (const addrinfo* at = all.get(); at; at = at->ai_next) {
      Socket socket(::socket(at->ai_family, at->ai_socktype, at->ai_protocol));
      if (!socket) continue;
      prepare(socket);
      if (::connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0) return socket;
      if (errno != EINPROGRESS || !wait_for(socket.descriptor(), POLLOUT, deadline)) continue;
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  return {};
}

Socket accept_from(const Socket& listener, Clock::time_point deadline) {
  while (wait_for(listener.descriptor(), POLLIN, deadline)) {
    Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) continue;
    prepare(socket);
    return socket;
  }
  return {};
}

bool send_all(const Socket& socket, std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!wait_for(socket.descriptor(), POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

bool receive_all(const Socket& socket, std::span<std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t count = recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (!wait_for(socket.descriptor(), POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  if (getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  return text;
}

int port_of(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Listener listen_here(const std::string& address, int port) {
  const Addresses all = resolve(address.empty() ? "0.0.0.0" : address, port, AI_PASSIVE);
  std::string reason;
  for (const addrinfo* at = all.get(); at; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, at->ai_socktype, at->ai_protocol));
    const int on = 1;
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (socket && bind(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0 &&
        listen(socket.descriptor(), 1024) == 0) {
      const int own_port = port_of(socket);
      return {dup(socket.descriptor()), own_port};
    }
    reason = std::strerror(errno);
  }
  throw RankError(0, fmt::format("cannot listen at {}:{}: {}", address, port, reason));
}

}  // namespace ebb::dist
