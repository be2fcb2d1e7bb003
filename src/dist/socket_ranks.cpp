// Ranks that are processes, connected by TCP. Between ranks of one host, long messages go from
// memory to memory (dist/peer_memory.h): the socket then carries their addresses, and an answer
// when they have been read, after which the sender may change them.
#include "dist/socket_ranks.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "core/hash64.h"
#include "dist/liveness.h"
#include "dist/peer_memory.h"

namespace ebb::dist {
namespace {

// Goes before the bytes of an exchange, so that ranks whose programs differ are told apart.
struct Header {
  std::uint64_t number = 0;      // of the exchange
  std::uint64_t collective = 0;  // a hash of its name
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  // where they are, if they do not follow
};

constexpr std::size_t shortest_read = 32 << 10;  // bytes; shorter messages go through the socket
constexpr std::size_t piece = 4 << 20;  // bytes that are read before looking after the rest

class SocketRanks final : public Communicator {
 public:
  SocketRanks(int rank, Mesh mesh)
      : Communicator(rank, static_cast<int>(mesh.data.size())),
        sockets_(std::move(mesh.data)),
        traffic_(sockets_.size()),
        polled_(sockets_.size()),
        liveness_(rank, std::move(mesh.control)) {}

  std::string_view transport() const override {
    for (std::size_t r = 0; r < sockets_.size(); ++r)
      if (sockets_[r] && !(memory_ && memory_->readable(r))) return "sockets";
    return "memory";
  }
  void find_memory() { memory_.emplace(*this); }
  void check_alive(std::string_view collective) const override { liveness_.check(collective); }

 private:
  // What is under way between this rank and another one, in both directions: a header; the bytes,
  // unless they are read from memory; and the answer to those that were.
  struct Traffic {
    Header out, in;
    std::size_t sent = 0, received = 0;  // of all of these, in bytes
    bool sending = false, receiving = false;
    bool offers = false, reads = false;  // this rank's bytes are read; it reads the other's
    std::size_t read = 0;                // bytes so far
  };
  static constexpr std::size_t answer = 1;  // bytes

  bool from_memory(std::size_t r, std::size_t bytes) const {
    return memory_ && bytes >= shortest_read && memory_->readable(r);
  }

  void transfer(std::span<const Sent> send, std::span<const Received> receive,
                std::string_view collective) override {
    ++number_;
    const std::uint64_t name = Hash64().add(collective).value();
    std::size_t left = 0;
    for (std::size_t r = 0; r < sockets_.size(); ++r) {
      if (!sockets_[r]) continue;
      traffic_[r] = {
          .out = {number_, name, send[r].size(), reinterpret_cast<std::uint64_t>(send[r].data())},
          .in = {},
          .sent = 0,
          .received = 0,
          .sending = true,
          .receiving = true,
          .offers = from_memory(r, send[r].size()),
          .reads = from_memory(r, receive[r].size()),
          .read = 0};
      left += 2;
    }
    while (left > 0) {
      std::size_t before = left;
      bool moved = false;
      for (std::size_t r = 0; r < sockets_.size(); ++r) {
        Traffic& t = traffic_[r];
        if (t.receiving && advance_receiving(r, receive[r], name, collective, moved))
          t.receiving = false, --left;
        if (t.sending && advance_sending(r, send[r], receive[r], collective, moved))
          t.sending = false, --left;
      }
      if (left == 0) break;
      if (!moved && before == left) wait(send, receive);
      liveness_.check(collective);
    }
  }

  // Whether there is something to send now, which may be less than all.
  static bool can_send(const Traffic& t, Sent bytes, Received received) {
    const std::size_t first = sizeof(Header) + (t.offers ? 0 : bytes.size());
    return t.sent < first || (t.reads && t.read == received.size());
  }

  void wait(std::span<const Sent> send, std::span<const Received> receive) {
    for (std::size_t r = 0; r < sockets_.size(); ++r) {
      const Traffic& t = traffic_[r];
      const bool sends = t.sending && can_send(t, send[r], receive[r]);
      const int events = (sends ? POLLOUT : 0) | (t.receiving ? POLLIN : 0);
      polled_[r] = {events ? sockets_[r].descriptor() : -1, static_cast<short>(events), 0};
    }
    poll(polled_.data(), polled_.size(), 100);
  }

  // Whether everything has been sent.
  bool advance_sending(std::size_t r, Sent bytes, Received received, std::string_view collective,
                       bool& moved) {
    Traffic& t = traffic_[r];
    const std::size_t follow = t.offers ? 0 : bytes.size(), first = sizeof(Header) + follow;
    while (t.sent < first + (t.reads ? answer : 0)) {
      if (!can_send(t, bytes, received)) return false;
      iovec parts[2];
      int count = 0;
      std::byte read{1};
      if (t.sent < sizeof(Header))
        parts[count++] = {reinterpret_cast<std::byte*>(&t.out) + t.sent, sizeof(Header) - t.sent};
      const std::size_t at = t.sent > sizeof(Header) ? t.sent - sizeof(Header) : 0;
      if (at < follow) parts[count++] = {const_cast<std::byte*>(bytes.data()) + at, follow - at};
      if (t.sent >= first) parts[count++] = {&read, answer};
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
    const std::size_t follow = t.reads ? 0 : bytes.size(), first = sizeof(Header) + follow;
    while (t.received < first + (t.offers ? answer : 0)) {
      const bool head = t.received < sizeof(Header);
      // The next part that comes is all that is taken: what follows may be of the next exchange.
      std::byte read{};
      std::byte* to = &read;
      std::size_t most = answer;
      if (head)
        to = reinterpret_cast<std::byte*>(&t.in) + t.received, most = sizeof(Header) - t.received;
      else if (t.received < first)
        to = bytes.data() + (t.received - sizeof(Header)), most = first - t.received;
      else if (t.reads && t.read < bytes.size() && !read_memory(r, bytes, collective, moved))
        return false;
      const ssize_t count = recv(sockets_[r].descriptor(), to, most, MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (count <= 0) lost(r, collective);
      t.received += static_cast<std::size_t>(count), moved = true;
      if (head && t.received == sizeof(Header)) require_same(r, bytes, name, collective);
    }
    return !t.reads || t.read == bytes.size() || read_memory(r, bytes, collective, moved);
  }

  // Reads the next piece; whether it was the last.
  bool read_memory(std::size_t r, Received bytes, std::string_view collective, bool& moved) {
    Traffic& t = traffic_[r];
    const Received part = bytes.subspan(t.read, std::min(piece, bytes.size() - t.read));
    if (!memory_->read(r, t.in.address + t.read, part)) lost(r, collective);
    t.read += part.size(), moved = true;
    return t.read == bytes.size();
  }

  void require_same(std::size_t r, Received bytes, std::uint64_t name,
                    std::string_view collective) const {
    const Header& in = traffic_[r].in;
    if (in.number != number_ || in.collective != name || in.bytes != bytes.size())
      throw RankError(
          static_cast<int>(r),
          fmt::format("rank {} does something else: this rank is in exchange {}, {}, and expects "
                      "{} bytes, but that rank sends {} bytes in exchange {}{}",
                      r, number_, collective, bytes.size(), in.bytes, in.number,
                      in.collective == name ? "" : ", another collective"));
  }

  [[noreturn]] void lost(std::size_t r, std::string_view collective) {
    liveness_.lost(static_cast<int>(r), collective, "its connection has closed");
  }

  std::vector<Socket> sockets_;
  std::vector<Traffic> traffic_;
  std::vector<pollfd> polled_;
  std::uint64_t number_ = 0;
  std::optional<PeerMemory> memory_;
  Liveness liveness_;
};

}  // namespace

std::shared_ptr<Communicator> socket_ranks(int rank, Mesh mesh) {
  const auto ranks = std::make_shared<SocketRanks>(rank, std::move(mesh));
  ranks->find_memory();
  return ranks;
}

}  // namespace ebb::dist
