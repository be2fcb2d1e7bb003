// The ranks of a run, and how they exchange bytes. A transport implements `exchange`; everything
// else is made of it. All ranks call the same functions in the same order.
//
// Every call ends: if a rank was lost (it ended, was stopped, or cannot be reached), the others get
// a RankError that names the rank and the collective within ten seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/error.h"

namespace ebb {

// A rank was lost, or the ranks disagree on what they are doing.
class RankError : public Error {
 public:
  RankError(int lost, const std::string& what) : Error(what), rank(lost) {}
  int rank;
};

// Who orders the additions of a sum over ranks.
enum class Reduce : std::uint8_t {
  exact,  // ebb: the order of one tree, so that the number of ranks changes no bit
  fast,   // the transport: NCCL on GPUs; other transports do not add
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view transport() const = 0;  // "sockets", "memory", "mpi", "threads"

  using Sent = std::span<const std::byte>;
  using Received = std::span<std::byte>;
  // Sends send[r] to rank r and receives receive[r] from it, for all ranks at once; both have as
  // many entries as there are ranks. What rank a sends to b has the size that b expects. The
  // entries of this rank itself are ignored. `collective` names the call in errors.
  void exchange(std::span<const Sent> send, std::span<const Received> receive,
                std::string_view collective);

  // all[r] becomes the bytes of rank r, in blocks of own.size().
  void all_gather(Sent own, Received all, std::string_view collective);
  // Texts of any length, by rank.
  std::vector<std::string> all_gather(const std::string& own, std::string_view collective);
  void broadcast(Received bytes, int root, std::string_view collective);
  std::string broadcast(const std::string& text, int root, std::string_view collective);
  // Returns when every rank has called it.
  void barrier(std::string_view collective);

  // Throws a RankError if a rank is known to be lost. May be called from any thread, while another
  // one is in an exchange. Transports that cannot tell between exchanges do nothing.
  virtual void check_alive(std::string_view collective) const;

  // Time in exchanges so far, most of it waiting for other ranks; and the bytes sent.
  double waited_ms() const { return waited_ms_; }
  std::int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  Communicator(int rank, int size);
  virtual void transfer(std::span<const Sent> send, std::span<const Received> receive,
                        std::string_view collective) = 0;

 private:
  int rank_, size_;
  double waited_ms_ = 0.0;
  std::int64_t bytes_sent_ = 0;
  std::vector<Sent> sent_;  // reused, so that no call allocates
  std::vector<Received> received_;
};

}  // namespace ebb
