// Watches over the other ranks. A thread sends each of them a sign of life twice a second and
// listens for theirs, on connections of its own: a rank that computes for minutes is alive, one
// that was killed, stopped or cut off is lost within ten seconds.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "dist/socket.h"

namespace ebb::dist {

class Liveness {
 public:
  // One connection to every other rank, by rank; that of this rank is empty.
  Liveness(int rank, std::vector<Socket> peers);
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  // Throws a RankError if a rank was lost, which the other ranks are told. For any thread.
  void check(std::string_view collective) const;
  // For a connection for data that has closed: waits a moment for what the other ranks tell, and
  // throws.
  [[noreturn]] void lost(int rank, std::string_view collective, std::string_view why);

 private:
  struct Message {
    char kind[4] = {};  // "beat", "bye ", "lost"
    std::int32_t rank = 0;
  };
  struct Peer {
    Socket socket;
    Clock::time_point heard;
    Message incoming;
    std::size_t received = 0;  // bytes of `incoming`
    bool gone = false;         // it has said goodbye, or was lost
  };
  enum class Why : int { closed, silent, told };

  void watch();
  void listen_to(int rank, Peer& peer);
  void send(Peer& peer, std::string_view kind, int rank);
  void note_lost(int rank, Why why);

  const int rank_;
  std::vector<Peer> peers_;  // the thread's own
  std::atomic<int> lost_{-1};
  std::atomic<Why> why_{Why::closed};
  std::atomic<bool> stopping_{false};
  int wake_[2] = {-1, -1};  // a pipe that ends the thread's wait
  std::thread thread_;
};

}  // namespace ebb::dist
