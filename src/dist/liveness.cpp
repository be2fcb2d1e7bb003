#include "dist/liveness.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "ebb/communicator.h"

namespace ebb::dist {
namespace {

constexpr double beat_every_s = 0.5;
// A machine under load may not run the thread for seconds; ten are promised.
constexpr double silence_s = 8.0;

}  // namespace

Liveness::Liveness(int rank, std::vector<Socket> peers) : rank_(rank) {
  for (Socket& socket : peers) {
    Peer peer;
    peer.socket = std::move(socket);
    peer.heard = Clock::now();
    peer.gone = !peer.socket;
    peers_.push_back(std::move(peer));
  }
  if (pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
    throw RankError(rank, fmt::format("no pipe can be made: {}", std::strerror(errno)));
  // Signals are for the thread that trains.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Liveness::~Liveness() {
  stopping_ = true;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(wake_[1], &byte, 1);
  thread_.join();
  close(wake_[0]), close(wake_[1]);
}

void Liveness::note_lost(int rank, Why why) {
  int none = -1;
  if (lost_.load() >= 0) return;
  why_ = why;
  lost_.compare_exchange_strong(none, rank);
}

void Liveness::send(Peer& peer, std::string_view kind, int rank) {
  if (peer.gone) return;
  Message message;
  std::memcpy(message.kind, kind.data(), sizeof message.kind);
  message.rank = rank;
  // A full buffer means that the other side does not listen, which its silence tells.
  [[maybe_unused]] const ssize_t sent =
      ::send(peer.socket.descriptor(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Liveness::listen_to(int rank, Peer& peer) {
  for (;;) {
    char* begin = reinterpret_cast<char*>(&peer.incoming);
    const ssize_t count = recv(peer.socket.descriptor(), begin + peer.received,
                               sizeof peer.incoming - peer.received, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      peer.gone = true;
      return note_lost(rank, Why::closed);
    }
    peer.heard = Clock::now();
    peer.received += static_cast<std::size_t>(count);
    if (peer.received < sizeof peer.incoming) continue;
    peer.received = 0;
    const std::string_view kind(peer.incoming.kind, sizeof peer.incoming.kind);
    if (kind == "bye ") {
      peer.gone = true;
      return;
    }
    if (kind == "lost" && peer.incoming.rank != rank_) note_lost(peer.incoming.rank, Why::told);
  }
}

void Liveness::watch() {
  std::vector<pollfd> polled(peers_.size() + 1);
  Clock::time_point next_beat = Clock::now(), last_look = Clock::now();
  bool told = false;
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    // A process that was stopped and goes on has heard nothing meanwhile.
    if (now - last_look > seconds(2.0))
      for (Peer& peer : peers_) peer.heard = now;
    last_look = now;
    if (now >= next_beat) {
      for (Peer& peer : peers_) send(peer, "beat", rank_);
      next_beat = now + seconds(beat_every_s);
    }
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      polled[r] = {peers_[r].gone ? -1 : peers_[r].socket.descriptor(), POLLIN, 0};
      if (!peers_[r].gone && now - peers_[r].heard > seconds(silence_s)) {
        peers_[r].gone = true;
        note_lost(static_cast<int>(r), Why::silent);
      }
    }
    if (lost_ >= 0 && !std::exchange(told, true))
      for (Peer& peer : peers_) send(peer, "lost", lost_);
    polled.back() = {wake_[0], POLLIN, 0};
    poll(polled.data(), polled.size(), 250);
    for (std::size_t r = 0; r < peers_.size(); ++r)
      if (polled[r].fd >= 0 && polled[r].revents != 0) listen_to(static_cast<int>(r), peers_[r]);
  }
  for (Peer& peer : peers_) lost_ >= 0 ? send(peer, "lost", lost_) : send(peer, "bye ", rank_);
}

void Liveness::check(std::string_view collective) const {
  const int rank = lost_;
  if (rank < 0) return;
  const Why why = why_;
  throw RankError(
      rank,
      fmt::format("rank {} was lost in {}: {}", rank, collective,
                  why == Why::silent   ? fmt::format("it gave no sign of life for {} s", silence_s)
                  : why == Why::closed ? "its connection has closed"
                                       : "another rank reports that it was lost"));
}

void Liveness::lost(int rank, std::string_view collective, std::string_view why) {
  // The rank that ended first may be another one, of which this one has already been told.
  for (int i = 0; i < 20 && lost_ < 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  note_lost(rank, Why::closed);
  check(collective);
  throw RankError(rank, fmt::format("rank {} was lost in {}: {}", rank, collective, why));
}

}  // namespace ebb::dist
