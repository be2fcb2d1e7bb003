// Compares offloading to disk with a plain loop of sequential O_DIRECT reads or writes, in the same
// run. One JSON object per direction, transfer size and method.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/offload_file.h"
#include "core/unnamed_file.h"
#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Method = OffloadFile::Method;

struct Options {
  std::filesystem::path folder = ".";
  std::string size = "256MiB";
  std::vector<std::string> transfers = {"256KiB", "1MiB", "4MiB", "16MiB", "64MiB"};
  std::size_t pending = 4;  // transfers of an OffloadFile at a time
  int rounds = 5;
};

std::size_t count(Bytes bytes) { return static_cast<std::size_t>(bytes.count); }

// Moves a file in order, from begin to end.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual void read(std::span<std::byte> memory, Bytes transfer) = 0;
  virtual void write(std::span<std::byte> memory, Bytes transfer) = 0;
};

class Plain final : public Contender {
 public:
  Plain(const std::filesystem::path& folder, Bytes size) : file_(folder, size) {
    if (!file_.direct())
      throw FileError(folder.string() + ": its file system does not bypass the page cache");
  }
  void read(std::span<std::byte> memory, Bytes transfer) override {
    each(transfer, [&](Bytes at) {
      return pread(file_.descriptor(), memory.data(), count(transfer), at.count);
    });
  }
  void write(std::span<std::byte> memory, Bytes transfer) override {
    each(transfer, [&](Bytes at) {
      return pwrite(file_.descriptor(), memory.data(), count(transfer), at.count);
    });
  }

 private:
  template <class Move>
  void each(Bytes transfer, const Move& move) {
    for (Bytes at; at < file_.size(); at += transfer)
      if (move(at) != transfer.count) throw FileError("a plain transfer failed");
  }
  UnnamedFile file_;
};

class Offloading final : public Contender {
 public:
  Offloading(const std::filesystem::path& folder, Bytes size, Method method, std::size_t pending)
      : file_(folder, size, 64, method), tickets_(pending) {}
  void read(std::span<std::byte> memory, Bytes transfer) override {
    each(memory, transfer, [&](std::span<std::byte> to, Bytes at) { return file_.read(to, at); });
  }
  void write(std::span<std::byte> memory, Bytes transfer) override {
    each(memory, transfer,
         [&](std::span<std::byte> from, Bytes at) { return file_.write(from, at); });
  }

 private:
  template <class Start>
  void each(std::span<std::byte> memory, Bytes transfer, const Start& start) {
    std::fill(tickets_.begin(), tickets_.end(), OffloadFile::Ticket{});
    std::size_t turn = 0;
    for (Bytes at; at < file_.size(); at += transfer, turn = (turn + 1) % tickets_.size()) {
      if (tickets_[turn].number != 0) file_.wait(tickets_[turn]);
      tickets_[turn] = start(memory.subspan(turn * count(transfer), count(transfer)), at);
    }
    for (const OffloadFile::Ticket ticket : tickets_)
      if (ticket.number != 0) file_.wait(ticket);
  }
  OffloadFile file_;
  std::vector<OffloadFile::Ticket> tickets_;
};

// In 10⁹ bytes per second. Other processes may use the disk too; the fastest round was disturbed
// least.
struct Rates {
  double median = 0.0, fastest = 0.0;
};

Rates rates(std::vector<double> seconds, Bytes size) {
  std::sort(seconds.begin(), seconds.end());
  const double gigabytes = static_cast<double>(size.count) * 1e-9;
  return {gigabytes / seconds[seconds.size() / 2], gigabytes / seconds.front()};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Compares offloading to disk with a plain loop.", "ebb_disk_bench");
  app.add_option("folder", options.folder, "On the disk to measure")->capture_default_str();
  app.add_option("--size", options.size, "Of each of the files")->capture_default_str();
  app.add_option("--transfers", options.transfers, "Sizes of a transfer")->capture_default_str();
  app.add_option("--pending", options.pending, "Transfers at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Of which the median and the fastest are told")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  std::vector<Bytes> transfers;
  for (const std::string& text : options.transfers) transfers.push_back(parse_bytes(text));
  const Bytes largest = *std::max_element(transfers.begin(), transfers.end());
  const Bytes size = parse_bytes(options.size);
  for (const Bytes transfer : transfers)
    if (transfer.count <= 0 || transfer.count % 4096 != 0 || size.count % transfer.count != 0)
      throw ValueError(fmt::format("transfers of {}: expected a multiple of 4096 B that divides {}",
                                   to_string(transfer), to_string(size)));
  const auto storage =
      Storage::allocate(device::cpu, static_cast<std::int64_t>(options.pending) * largest);
  const std::span<std::byte> memory(storage->data(), count(storage->size()));
  std::uint64_t value = 1;  // bytes that no disk compresses
  for (std::size_t at = 0; at < memory.size(); at += sizeof value) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(memory.data() + at, &value, sizeof value);
  }

  std::map<std::string, std::unique_ptr<Contender>> contenders;
  contenders["plain"] = std::make_unique<Plain>(options.folder, size);
  for (const auto& [name, method] :
       {std::pair{"io_uring", Method::io_uring}, std::pair{"threads", Method::threads}}) {
    try {
      contenders[name] =
          std::make_unique<Offloading>(options.folder, size, method, options.pending);
    } catch (const FileError& refused) {
      std::cerr << refused.what() << '\n';
      contenders.erase(name);
    }
  }
  // Reading blocks that were never written would not reach the disk.
  for (const auto& [name, contender] : contenders) contender->write(memory, largest);

  for (const std::string direction : {"read", "write"}) {
    std::map<Bytes, std::map<std::string, std::vector<double>>> seconds;
    // The loop over rounds is outside, so that a slow minute of the disk affects all methods.
    for (int round = 0; round < options.rounds; ++round)
      for (const Bytes transfer : transfers)
        for (const auto& [name, contender] : contenders) {
          const Clock::time_point begin = Clock::now();
          direction == "read" ? contender->read(memory, transfer)
                              : contender->write(memory, transfer);
          seconds[transfer][name].push_back(
              std::chrono::duration<double>(Clock::now() - begin).count());
        }
    for (const auto& [transfer, times] : seconds)
      for (const auto& [name, taken] : times) {
        const Rates here = rates(taken, size), plain = rates(times.at("plain"), size);
        std::cout << nlohmann::ordered_json{{"direction", direction},
                                            {"transfer_bytes", transfer.count},
                                            {"method", name},
                                            {"median_gb_per_second", here.median},
                                            {"fastest_gb_per_second", here.fastest},
                                            {"median_to_plain", here.median / plain.median},
                                            {"fastest_to_plain", here.fastest / plain.fastest}}
                         .dump()
                  << std::endl;
      }
  }
  return 0;
}

}  // namespace
}  // namespace ebb::bench

int main(int argc, char** argv) {
  try {
    return ebb::bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "ebb_disk_bench: error: " << e.what() << std::endl;
    return 1;
  }
}
