#include "io/sharded_tensors.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/communicator.h"
#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb::io {
namespace {

// The bytes of a rank's range in the whole tensor.
struct ByteRange {
  std::size_t begin, size;

  ByteRange(const TensorType& whole, const TensorType& range, int rank) {
    const auto all = static_cast<std::size_t>(whole.bytes().count),
               one = static_cast<std::size_t>(range.bytes().count);
    begin = std::min(all, static_cast<std::size_t>(rank) * one);
    size = std::min(one, all - begin);
  }
};

}  // namespace

NamedTensor ShardedTensors::add(const std::string& name, const Variable& range,
                                const TensorType& whole) {
  const std::size_t i = entries_.size();
  entries_.push_back({name, range, whole});
  return {name, {}, [this, i] { return gather(i); }, whole};
}

void ShardedTensors::give() {
  while (next_ < entries_.size()) gather(next_);
}

std::vector<std::byte> ShardedTensors::gather(std::size_t i) {
  if (i != next_)
    throw ValueError(fmt::format("\"{}\" is gathered out of order", entries_[i].name));
  ++next_;
  const Entry& entry = entries_[i];
  const std::string& name = entry.name;
  const Variable& range = entry.range;
  const TensorType& whole = entry.whole;
  if (!options_.compile.communicator)
    throw ValueError(fmt::format("\"{}\" is shared by ranks, but there is no communicator", name));
  Communicator& ranks = *options_.compile.communicator;
  const std::size_t count = static_cast<std::size_t>(ranks.size());
  const auto part = [&](int rank) { return ByteRange(whole, range.type(), rank); };
  std::vector<std::byte> all(ranks.rank() == 0 ? static_cast<std::size_t>(whole.bytes().count) : 0);
  std::vector<std::byte> own(part(ranks.rank()).size);
  range.node()->storage()->read(own);
  std::vector<Communicator::Sent> send(count);
  std::vector<Communicator::Received> receive(count);
  if (ranks.rank() == 0) {
    std::copy(own.begin(), own.end(), all.begin());
    for (int r = 1; r < ranks.size(); ++r)
      receive[static_cast<std::size_t>(r)] = std::span(all).subspan(part(r).begin, part(r).size);
  } else {
    send[0] = own;
  }
  ranks.exchange(send, receive, fmt::format("the checkpoint's \"{}\"", name));
  return all;
}

ShardedTensors::TakeRest::~TakeRest() {
  try {
    tensors_.give();
  } catch (const Error&) {  // a rank was lost, which the next exchange tells
  }
}

void load_own_range(const SafetensorsFile& file, const std::string& name, Variable range,
                    int rank) {
  const std::vector<std::byte> all = file.bytes(name);
  const ByteRange part(file.at(name).type, range.type(), rank);
  std::vector<std::byte> own(static_cast<std::size_t>(range.type().bytes().count));
  std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(part.begin), part.size, own.begin());
  range.assign_bytes(own);
}

}  // namespace ebb::io
