// Ranks connected by sockets: short messages are sent through them, long ones are copied from
// memory to memory if the system allows it.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "ebb/dist/ranks.h"

namespace ebb::test {
namespace {

using Bytes = std::vector<std::byte>;

// Calls `work` on ranks that are threads here but are connected only by sockets.
void on_sockets(int count, const std::function<void(std::shared_ptr<Communicator>)>& work) {
  const dist::Listener listener = dist::listen_here("127.0.0.1", 0);
  std::vector<std::future<void>> ranks;
  for (int r = 0; r < count; ++r)
    ranks.push_back(std::async(std::launch::async, [&, r] {
      dist::RankPlace place;
      place.rank = r, place.size = place.local_size = count;
      place.address = "127.0.0.1", place.port = listener.port, place.token = "test";
      if (r == 0) place.listener = listener.descriptor;
      work(dist::connect(place));
    }));
  for (auto& rank : ranks) rank.wait();
  for (auto& rank : ranks) rank.get();
}

// The message of rank `from` to rank `to` in a round. Its sizes cover both ways and the limits
// between them.
Bytes message(int from, int to, int round) {
  constexpr std::size_t sizes[] = {0, 1, 1000, 32767, 32768, 100001, 4 << 20, (9 << 20) + 3};
  Bytes bytes(sizes[static_cast<std::size_t>(3 * from + 5 * to + round) % std::size(sizes)]);
  std::uint32_t state = static_cast<std::uint32_t>(1000 * from + 100 * to + round + 1);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

TEST(SocketRanks, MessagesOfAnySizeArrive) {
  for (const int count : {2, 3})
    on_sockets(count, [&](const std::shared_ptr<Communicator>& ranks) {
      for (int round = 0; round < 16; ++round) {
        std::vector<Bytes> sent, received, expected;
        for (int r = 0; r < count; ++r) {
          sent.push_back(message(ranks->rank(), r, round));
          expected.push_back(message(r, ranks->rank(), round));
          received.emplace_back(expected.back().size());
        }
        const std::vector<Communicator::Sent> out(sent.begin(), sent.end());
        const std::vector<Communicator::Received> in(received.begin(), received.end());
        ranks->exchange(out, in, "a test");
        // The sender may change its bytes at once.
        for (Bytes& bytes : sent) std::fill(bytes.begin(), bytes.end(), std::byte{});
        for (int r = 0; r < count; ++r)
          if (r != ranks->rank()) {
            EXPECT_TRUE(received[static_cast<std::size_t>(r)] ==
                        expected[static_cast<std::size_t>(r)])
                << count << " ranks, round " << round << ", from " << r;
          }
      }
    });
}

TEST(SocketRanks, ARankThatDoesSomethingElseIsNamed) {
  std::vector<std::string> errors(2);
  on_sockets(2, [&](const std::shared_ptr<Communicator>& ranks) {
    // One rank expects a long message and gets a short one.
    Bytes own(ranks->rank() == 0 ? 100000 : 10), other(100000);
    const std::vector<Communicator::Sent> out{own, own};
    const std::vector<Communicator::Received> in{other, other};
    try {
      ranks->exchange(out, in, "a test");
    } catch (const RankError& error) {
      errors[static_cast<std::size_t>(ranks->rank())] = error.what();
    }
  });
  EXPECT_NE(errors[0].find("expects 100000 bytes, but that rank sends 10"), std::string::npos)
      << errors[0];
}

TEST(SocketRanks, ARankThatEndsIsLostToTheOthers) {
  std::string error;
  const auto begin = std::chrono::steady_clock::now();
  on_sockets(3, [&](std::shared_ptr<Communicator> ranks) {
    if (ranks->rank() == 1) return ranks.reset();
    Bytes own(1 << 20), all(3 << 20);
    try {
      ranks->all_gather(own, all, "a test");
      ADD_FAILURE() << "rank " << ranks->rank() << " has not missed rank 1";
    } catch (const RankError& e) {
      if (ranks->rank() == 0) error = e.what();
    }
  });
  EXPECT_NE(error.find("was lost in a test"), std::string::npos) << error;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ebb::test
