// Ranks that exchange bytes through MPI. MPI does not tell that a rank was stopped, and may not
// tell that one has ended, so signs of life go over connections of ebb's own.
#include "dist/mpi_ranks.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "dist/liveness.h"
#include "dist/mesh.h"
#include "dist/mpi_plugin.h"

namespace ebb::dist {
namespace {

namespace fs = std::filesystem;

// The module beside the program, where it is installed, or where it was built.
const EbbMpi& load_module(const RankPlace& place) {
#ifdef EBB_MPI_MODULE
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none).parent_path();
  std::string reason;
  for (const fs::path& file :
       {program / "libebb_mpi.so", program.parent_path() / "lib/ebb/libebb_mpi.so",
        fs::path(EBB_MPI_MODULE)}) {
    if (!fs::exists(file, none)) continue;
    // MPI loads parts of itself that look for its symbols.
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    using Module = const EbbMpi* (*)();
    if (handle)
      if (const auto module = reinterpret_cast<Module>(dlsym(handle, "ebb_mpi_module")))
        return *module();
    reason = dlerror();
  }
  throw RankError(
      place.rank,
      fmt::format("started by {} as rank {} of {}, but MPI cannot be loaded: {}", place.starter,
                  place.rank, place.size, reason.empty() ? "libebb_mpi.so is not there" : reason));
#else
  throw RankError(
      place.rank,
      fmt::format(
          "started by {} as rank {} of {}, but ebb was built where there was no MPI; install "
          "libopenmpi-dev and build again, or set MASTER_ADDR and MASTER_PORT to connect the "
          "ranks by sockets",
          place.starter, place.rank, place.size));
#endif
}

class MpiRanks final : public Communicator {
 public:
  MpiRanks(int rank, int size, const EbbMpi& mpi, Clock::time_point deadline)
      : Communicator(rank, size), mpi_(mpi) {
    connect(deadline);
  }
  ~MpiRanks() override {
    liveness_.reset();
    if (!failed_) mpi_.finish();  // waits for the others, so not after an error
  }
  std::string_view transport() const override { return "mpi"; }
  void check_alive(std::string_view collective) const override { liveness_->check(collective); }

 private:
  // The addresses of all ranks go through MPI.
  void connect(Clock::time_point deadline) {
    struct Row {
      std::array<char, 256> host = {};
      std::array<char, 40> token = {};
      std::int32_t port = 0;
    } own;
    const Socket listener(listen_here("", 0).descriptor);
    prepare(listener);
    gethostname(own.host.data(), own.host.size() - 1);
    own.port = port_of(listener);
    const std::string token = fmt::format("mpi {} {}", own.port, getpid());
    std::memcpy(own.token.data(), token.data(), std::min(token.size(), own.token.size() - 1));
    std::vector<Row> rows(static_cast<std::size_t>(size()));
    check(mpi_.all_gather(&own, rows.data(), sizeof own), "the start");
    std::vector<Contact> contacts;
    for (const Row& row : rows)
      contacts.push_back(
          {std::strcmp(row.host.data(), own.host.data()) == 0 ? "127.0.0.1" : row.host.data(),
           row.port});
    Mesh mesh = connect_all(rank(), contacts, listener, rows.front().token.data(), deadline);
    // One connection is enough: data goes through MPI.
    mesh.data.clear();
    liveness_.emplace(rank(), std::move(mesh.control));
  }

  void transfer(std::span<const Sent> send, std::span<const Received> receive,
                std::string_view collective) override {
    constexpr int tags = 1 << 14;  // at least 32767 are allowed
    const int tag = static_cast<int>(number_++ % tags);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const std::size_t i = static_cast<std::size_t>(r);
      check(mpi_.receive(r, receive[i].data(), receive[i].size(), tag), collective);
      check(mpi_.send(r, send[i].data(), send[i].size(), tag), collective);
    }
    for (int tries = 0;; ++tries) {
      int done = 0;
      check(mpi_.test(&done), collective);
      if (done) return;
      if (tries % 64 == 63) {
        check_liveness(collective);
        sched_yield();
      }
    }
  }

  void check_liveness(std::string_view collective) {
    try {
      liveness_->check(collective);
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  void check(int error, std::string_view collective) {
    if (error == 0) return;
    failed_ = true;
    if (liveness_) liveness_->check(collective);
    throw RankError(rank(), fmt::format("{}: {}", collective, mpi_.error(error)));
  }

  const EbbMpi& mpi_;
  std::optional<Liveness> liveness_;
  std::uint64_t number_ = 0;
  bool failed_ = false;
};

}  // namespace

std::shared_ptr<Communicator> mpi_ranks(const RankPlace& place, Clock::time_point deadline) {
  const EbbMpi& mpi = load_module(place);
  int rank = 0, size = 0;
  if (const int error = mpi.start(&rank, &size); error != 0)
    throw RankError(place.rank, fmt::format("MPI cannot be started: {}", mpi.error(error)));
  if (rank != place.rank || size != place.size)
    throw RankError(
        place.rank,
        fmt::format("{} says rank {} of {}, but MPI says rank {} of {}: ebb was built with "
                    "another MPI than the one that started it",
                    place.starter, place.rank, place.size, rank, size));
  return std::make_shared<MpiRanks>(rank, size, mpi, deadline);
}

}  // namespace ebb::dist
