#include "io/sharded_tensors.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/communicator.h"
#include "ebb/error.h"
#include "ebb/storage.h"
#include "io/file_of_ranks.h"

namespace ebb::io {

std::vector<std::byte> gather_ranges_of(const std::string& name, const Variable& range,
                                        const TensorType& whole, const TrainOptions& options) {
  if (!options.compile.communicator)
    throw ValueError(fmt::format("\"{}\" is shared by ranks, but there is no communicator", name));
  Communicator& ranks = *options.compile.communicator;
  const std::size_t count = static_cast<std::size_t>(ranks.size());
  const auto part = [&](int rank) { return ByteRange::of(whole, range.type(), rank); };
  std::vector<std::byte> all(ranks.rank() == 0 ? static_cast<std::size_t>(whole.bytes().count) : 0);
  std::vector<std::byte> own(static_cast<std::size_t>(part(ranks.rank()).size));
  range.node()->storage()->read(own);
  std::vector<Communicator::Sent> send(count);
  std::vector<Communicator::Received> receive(count);
  if (ranks.rank() == 0) {
    std::copy(own.begin(), own.end(), all.begin());
    for (int r = 1; r < ranks.size(); ++r)
      receive[static_cast<std::size_t>(r)] = std::span(all).subspan(
          static_cast<std::size_t>(part(r).begin), static_cast<std::size_t>(part(r).size));
  } else {
    send[0] = own;
  }
  ranks.exchange(send, receive, fmt::format("the gathering of \"{}\"", name));
  return all;
}

void load_own_range(const SafetensorsFile& file, const std::string& name, Variable range,
                    int rank) {
  const ByteRange part = ByteRange::of(file.at(name).type, range.type(), rank);
  std::vector<std::byte> own(static_cast<std::size_t>(range.type().bytes().count));
  file.read(name, part.begin, std::span(own).first(static_cast<std::size_t>(part.size)));
  range.assign_bytes(own);
}

}  // namespace ebb::io
