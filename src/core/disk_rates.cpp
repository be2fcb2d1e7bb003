#include "core/disk_rates.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "core/offload_file.h"
#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes transfer = 16_MiB;
constexpr std::size_t pending = 4;
constexpr double longest_pass = 2.0;  // seconds

struct Pass {
  Bytes moved;
  double seconds = 0.0;
  double rate() const { return static_cast<double>(moved.count) / std::max(seconds, 1e-9); }
};

// Transfers from the file's beginning to `end`, or until the time is up. Each buffer is used by one
// transfer at a time.
template <class Start>
Pass pass(OffloadFile& file, std::span<std::byte> buffers, Bytes end, const Start& start) {
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::array<OffloadFile::Ticket, pending> tickets{};
  Pass result;
  for (std::size_t turn = 0; result.moved < end; turn = (turn + 1) % pending) {
    if (tickets[turn].number != 0) file.wait(tickets[turn]);
    if (elapsed() > longest_pass && result.moved > 0_B) break;
    const Bytes size = std::min(transfer, end - result.moved);
    tickets[turn] = start(buffers.subspan(turn * static_cast<std::size_t>(transfer.count),
                                          static_cast<std::size_t>(size.count)),
                          result.moved);
    result.moved += size;
  }
  for (const OffloadFile::Ticket ticket : tickets)
    if (ticket.number != 0) file.wait(ticket);
  result.seconds = elapsed();
  return result;
}

}  // namespace

DiskRates measure_disk(const std::filesystem::path& folder, Bytes size) {
  if (size <= 0_B)
    throw ValueError(fmt::format("measuring a disk with {} B: expected 1 or more", size.count));
  OffloadFile file(folder, size);
  const Bytes held = static_cast<std::int64_t>(pending) * transfer;
  const auto memory = Storage::allocate(device::cpu, held);
  const std::span<std::byte> buffers(memory->data(), static_cast<std::size_t>(held.count));
  // Random bytes, because some disks compress.
  std::uint64_t value = 1;
  for (std::size_t at = 0; at < buffers.size(); at += sizeof value) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(buffers.data() + at, &value, sizeof value);
  }
  const auto read = [&](std::span<std::byte> to, Bytes at) { return file.read(to, at); };
  const auto write = [&](std::span<std::byte> from, Bytes at) { return file.write(from, at); };
  // The first write of a block makes the file system record that it has contents; reading a block
  // never written does not reach the disk. A run writes each block many times, so later writes are
  // measured.
  const Bytes known = pass(file, buffers, file.size(), write).moved;
  const double written = pass(file, buffers, known, write).rate();
  const double was_read = pass(file, buffers, known, read).rate();
  // Every other transfer is a write, so half of the bytes go each way.
  bool writes = false;
  const double both = pass(file, buffers, known, [&](std::span<std::byte> part, Bytes at) {
                        return (writes = !writes) ? write(part, at) : read(part, at);
                      }).rate();
  return {was_read, written, both / 2.0, file.direct(), std::string(file.method())};
}

}  // namespace ebb
