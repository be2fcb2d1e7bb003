// Ranks that are processes, connected by TCP.
#include "dist/socket_ranks.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/hash64.h"
#include "dist/liveness.h"

namespace ebb::dist {
namespace {

// Goes before the bytes of an exchange, so that ranks whose programs differ are told apart.
struct Header {
  std::uint64_t number = 0;      // of the exchange
  std::uint64_t collective = 0;  // a hash of its name
  std::uint64_t bytes = 0;
};

class SocketRanks final : public Communicator {
 public:
  SocketRanks(int rank, Mesh mesh)
      : Communicator(rank, static_cast<int>(mesh.data.size())),
        sockets_(std::move(mesh.data)),
        traffic_(sockets_.size()),
        polled_(sockets_.size()),
        liveness_(rank, std::move(mesh.control)) {}

  std::string_view transport() const override { return "sockets"; }
  void check_alive(std::string_view collective) const override { liveness_.check(collective); }

 private:
  // The bytes under way between this rank and another one, in both directions.
  struct Traffic {
    Header out, in;
    std::size_t sent = 0, received = 0;  // bytes, the header's included
    bool sending = false, receiving = false;
  };

  void transfer(std::span<const Sent> send, std::span<const Received> receive,
                std::string_view collective) override {
    ++number_;
    const std::uint64_t name = Hash64().add(collective).value();
    std::size_t left = 0;
    for (std::size_t r = 0; r < sockets_.size(); ++r) {
      if (!sockets_[r]) continue;
      traffic_[r] = {.out = {number_, name, send[r].size()},
                     .in = {},
                     .sent = 0,
                     .received = 0,
                     .sending = true,
                     .receiving = true};
      left += 2;
    }
    while (left > 0) {
      std::size_t before = left;
      bool moved = false;
      for (std::size_t r = 0; r < sockets_.size(); ++r) {
        Traffic& t = traffic_[r];
        if (t.sending && advance_sending(r, send[r], collective, moved)) t.sending = false, --left;
        if (t.receiving && advance_receiving(r, receive[r], name, collective, moved))
          t.receiving = false, --left;
      }
      if (left == 0) break;
      if (!moved && before == left) wait();
      liveness_.check(collective);
    }
  }

  void wait() {
    for (std::size_t r = 0; r < sockets_.size(); ++r) {
      const Traffic& t = traffic_[r];
      const int events = (t.sending ? POLLOUT : 0) | (t.receiving ? POLLIN : 0);
      polled_[r] = {events ? sockets_[r].descriptor() : -1, static_cast<short>(events), 0};
    }
    poll(polled_.data(), polled_.size(), 100);
  }

  // Whether everything has been sent.
  bool advance_sending(std::size_t r, Sent bytes, std::string_view collective, bool& moved) {
    Traffic& t = traffic_[r];
    while (t.sent < sizeof(Header) + bytes.size()) {
      iovec parts[2];
      int count = 0;
      if (t.sent < sizeof(Header))
        parts[count++] = {reinterpret_cast<std::byte*>(&t.out) + t.sent, sizeof(Header) - t.sent};
      const std::size_t at = t.sent > sizeof(Header) ? t.sent - sizeof(Header) : 0;
      if (at < bytes.size())
        parts[count++] = {const_cast<std::byte*>(bytes.data()) + at, bytes.size() - at};
      msghdr message = {};
      message.msg_iov = parts, message.msg_iovlen = static_cast<std::size_t>(count);
      const ssize_t sent = sendmsg(sockets_[r].descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (sent < 0) lost(r, collective);
      t.sent += static_cast<std::size_t>(sent), moved = true;
    }
    return true;
  }

  // Whether everything has been received.
  bool advance_receiving(std::size_t r, Received bytes, std::uint64_t name,
                         std::string_view collective, bool& moved) {
    Traffic& t = traffic_[r];
    while (t.received < sizeof(Header) + bytes.size()) {
      const bool head = t.received < sizeof(Header);
      std::byte* to = head ? reinterpret_cast<std::byte*>(&t.in) + t.received
                           : bytes.data() + (t.received - sizeof(Header));
      const std::size_t most = (head ? sizeof(Header) : sizeof(Header) + bytes.size()) - t.received;
      const ssize_t count = recv(sockets_[r].descriptor(), to, most, MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (count <= 0) lost(r, collective);
      t.received += static_cast<std::size_t>(count), moved = true;
      if (head && t.received == sizeof(Header) &&
          (t.in.number != number_ || t.in.collective != name || t.in.bytes != bytes.size()))
        throw RankError(
            static_cast<int>(r),
            fmt::format("rank {} does something else: this rank is in exchange {}, {}, and expects "
                        "{} bytes, but that rank sends {} bytes in exchange {}{}",
                        r, number_, collective, bytes.size(), t.in.bytes, t.in.number,
                        t.in.collective == name ? "" : ", another collective"));
    }
    return true;
  }

  [[noreturn]] void lost(std::size_t r, std::string_view collective) {
    liveness_.lost(static_cast<int>(r), collective, "its connection has closed");
  }

  std::vector<Socket> sockets_;
  std::vector<Traffic> traffic_;
  std::vector<pollfd> polled_;
  std::uint64_t number_ = 0;
  Liveness liveness_;
};

}  // namespace

std::shared_ptr<Communicator> socket_ranks(int rank, Mesh mesh) {
  return std::make_shared<SocketRanks>(rank, std::move(mesh));
}

}  // namespace ebb::dist
