#include "dist/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <optional>

namespace ebb::dist {
namespace {

// What a rank says first on a connection.
struct Hello {
  std::array<char, 8> magic = {'e', 'b', 'b', 'r', 'a', 'n', 'k', '2'};
  std::array<char, 40> token = {};
  std::int32_t rank = 0, size = 0;
  std::int32_t purpose = 0;  // 0: to be told of the others, 1: data, 2: signs of life
  std::int32_t port = 0;     // where it listens

  bool fits(const Hello& other) const {
    return magic == other.magic && token == other.token && size == other.size && rank >= 0 &&
           rank < size;
  }
};

// An address of a rank as it is sent.
struct Row {
  std::array<char, 64> address = {};
  std::int32_t port = 0;
};

Hello hello(const std::string& token, int rank, int size, int purpose, int port) {
  Hello own;
  std::memcpy(own.token.data(), token.data(), std::min(token.size(), own.token.size()));
  own.rank = rank, own.size = size, own.purpose = purpose, own.port = port;
  return own;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// The next connection whose greeting is of this run; strangers are turned away.
std::optional<std::pair<Socket, Hello>> accept_rank(const Socket& listener, const Hello& own,
                                                    Clock::time_point deadline) {
  while (Socket socket = accept_from(listener, deadline)) {
    Hello other;
    const Clock::time_point soon = std::min(deadline, Clock::now() + seconds(5.0));
    if (receive_all(socket, bytes_of(other), soon) && other.fits(own))
      return std::pair{std::move(socket), other};
  }
  return {};
}

// Rank 0 is reached by a name that may mean another address on its own host than elsewhere (Debian
// gives a host's own name an address of the loopback interface), so it listens at all of them,
// unless all ranks are on this host.
Listener listen_for_ranks(const RankPlace& place) {
  const std::string& address = place.address;
  const bool here = address == "localhost" || address == "::1" || address.starts_with("127.");
  try {
    return listen_here(here || address.find(':') != std::string::npos ? address : "", place.port);
  } catch (const RankError& error) {
    throw RankError(0, fmt::format("{}; MASTER_PORT, the same for all ranks, gives another port",
                                   error.what()));
  }
}

[[noreturn]] void missing(const std::vector<bool>& here, std::string_view what) {
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < here.size(); ++r)
    if (!here[r]) ranks.push_back(r);
  throw RankError(
      static_cast<int>(ranks.front()),
      fmt::format("ranks that did not come in time to {}: {}", what, fmt::join(ranks, ", ")));
}

}  // namespace

Mesh connect_all(int rank, const std::vector<Contact>& contacts, const Socket& listener,
                 const std::string& token, Clock::time_point deadline) {
  const int size = static_cast<int>(contacts.size());
  Mesh mesh;
  mesh.data.resize(contacts.size()), mesh.control.resize(contacts.size());
  // A rank connects to those before it, and is connected to by those after it.
  for (int r = 0; r < rank; ++r)
    for (const int purpose : {1, 2}) {
      const Contact& at = contacts[static_cast<std::size_t>(r)];
      Socket socket = connect_to(at.address, at.port, deadline);
      if (!socket || !send_all(socket, bytes_of(hello(token, rank, size, purpose, 0)), deadline))
        throw RankError(r,
                        fmt::format("rank {} cannot be reached at {}:{}", r, at.address, at.port));
      (purpose == 1 ? mesh.data : mesh.control)[static_cast<std::size_t>(r)] = std::move(socket);
    }
  const Hello own = hello(token, rank, size, 0, 0);
  for (int left = 2 * (size - 1 - rank); left > 0;) {
    auto accepted = accept_rank(listener, own, deadline);
    if (!accepted) {
      std::vector<bool> here;
      for (int r = 0; r < size; ++r)
        here.push_back(r <= rank || (mesh.data[static_cast<std::size_t>(r)] &&
                                     mesh.control[static_cast<std::size_t>(r)]));
      missing(here, "connect");
    }
    auto& [socket, other] = *accepted;
    if (other.rank <= rank || (other.purpose != 1 && other.purpose != 2)) continue;
    Socket& place =
        (other.purpose == 1 ? mesh.data : mesh.control)[static_cast<std::size_t>(other.rank)];
    if (place)
      throw RankError(other.rank,
                      fmt::format("two processes say that they are rank {}", other.rank));
    place = std::move(socket);
    --left;
  }
  return mesh;
}

Mesh meet(const RankPlace& place, Clock::time_point deadline) {
  const std::size_t count = static_cast<std::size_t>(place.size);
  std::vector<Row> rows(count);
  if (place.rank == 0) {
    const Socket listener(place.listener ? *place.listener : listen_for_ranks(place).descriptor);
    prepare(listener);
    const Hello own = hello(place.token, 0, place.size, 0, 0);
    std::vector<Socket> guests(count);
    std::vector<bool> here(count);
    here[0] = true;
    for (int left = place.size - 1; left > 0;) {
      auto accepted = accept_rank(listener, own, deadline);
      if (!accepted)
        missing(here, fmt::format("rank 0 at {}:{}", place.address, port_of(listener)));
      auto& [socket, other] = *accepted;
      const std::size_t r = static_cast<std::size_t>(other.rank);
      if (other.purpose != 0) continue;
      if (here[r])
        throw RankError(other.rank, fmt::format("two processes say that they are rank {}", r));
      const std::string address = peer_address(socket);
      std::memcpy(rows[r].address.data(), address.data(),
                  std::min(address.size(), rows[r].address.size() - 1));
      rows[r].port = other.port;
      guests[r] = std::move(socket), here[r] = true;
      --left;
    }
    // The others know rank 0 by the address that they reached it at.
    for (std::size_t r = 1; r < count; ++r)
      if (!send_all(guests[r], std::as_bytes(std::span(rows)), deadline))
        throw RankError(static_cast<int>(r), fmt::format("rank {} has ended at the start", r));
    std::vector<Contact> contacts(count);
    return connect_all(0, contacts, listener, place.token, deadline);
  }
  const Socket listener(listen_here("", 0).descriptor);
  prepare(listener);
  const Socket host = connect_to(place.address, place.port, deadline);
  if (!host)
    throw RankError(0, fmt::format("rank 0 cannot be reached at {}:{}", place.address, place.port));
  if (!send_all(host, bytes_of(hello(place.token, place.rank, place.size, 0, port_of(listener))),
                deadline) ||
      !receive_all(host, std::as_writable_bytes(std::span(rows)), deadline))
    throw RankError(0,
                    fmt::format("rank 0 at {}:{} did not answer: it has ended, belongs to another "
                                "run, or waits for other ranks",
                                place.address, place.port));
  std::vector<Contact> contacts{{place.address, place.port}};
  for (std::size_t r = 1; r < count; ++r) {
    rows[r].address.back() = '\0';
    contacts.push_back({rows[r].address.data(), rows[r].port});
  }
  return connect_all(place.rank, contacts, listener, place.token, deadline);
}

}  // namespace ebb::dist
