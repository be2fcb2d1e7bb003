#include "io/file_of_ranks.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <span>

#include "core/hash64.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/node.h"
#include "ebb/storage.h"
#include "io/safetensors_header.h"
#include "ops/collective/collective.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t copied_at_once = 1 << 24;  // of what passes through a buffer

// Calls `take` with the bytes of a rank's part, piece by piece.
void each_piece(const TensorOfRanks& tensor, const ByteRange& part,
                const std::function<void(std::span<const std::byte>)>& take) {
  const Storage& storage = *tensor.value.node()->storage();
  const std::int64_t from = tensor.is_range ? 0 : part.begin;
  std::vector<std::byte> buffer;
  for (std::int64_t at = 0; at < part.size; at += copied_at_once) {
    const auto count = static_cast<std::size_t>(std::min(copied_at_once, part.size - at));
    if (storage.on_host()) {
      take({storage.data() + from + at, count});
      continue;
    }
    buffer.resize(count);
    storage.read(buffer, Bytes{from + at});
    take(buffer);
  }
}

// The file while it is written, opened by every rank.
class OpenPart {
 public:
  explicit OpenPart(const fs::path& path)
      : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) fail("open it for writing; all ranks must see the same folder");
  }
  ~OpenPart() { close(descriptor_); }
  OpenPart(const OpenPart&) = delete;
  OpenPart& operator=(const OpenPart&) = delete;

  void write(std::int64_t at, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      at += written, bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void flush() {
    if (fsync(descriptor_) != 0) fail("flush to disk");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw FileError(fmt::format("{}: cannot {}: {}", path_.string(), what, std::strerror(errno)));
  }

  const fs::path path_;
  const int descriptor_;
};

class Writing {
 public:
  Writing(std::vector<TensorOfRanks> tensors, Communicator& ranks)
      : ranks_(ranks), tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    for (const TensorOfRanks& t : tensors_) {
      if (!t.value || !t.value.node()->storage())
        throw ValueError(fmt::format("the checkpoint's \"{}\" has no value", t.name));
      // A tensor that every rank has as a whole is divided only for writing.
      const TensorType range =
          t.is_range
              ? t.value.type()
              : TensorType{{range_elements(t.whole.shape.elements(), ranks.size())}, t.whole.dtype};
      parts_.push_back(ByteRange::of(t.whole, range, ranks.rank()));
    }
  }

  void run(const fs::path& path, const std::map<std::string, std::string>& metadata) {
    const std::string start = "the start of a checkpoint";
    std::string failure = ranks_.broadcast(begin(path, metadata), 0, start);
    if (!failure.empty()) throw FileError(failure);
    const fs::path file = ranks_.broadcast(temporary(), 0, start);
    // The metadata of rank 0 decides how long the head is.
    auto data = static_cast<std::int64_t>(layout_.head.size());
    ranks_.broadcast(std::as_writable_bytes(std::span(&data, 1)), 0, start);
    const std::string tensors = ranks_.broadcast(fingerprint(), 0, start);
    std::unique_ptr<OpenPart> own;
    try {
      if (tensors != fingerprint())
        throw FileError("the tensors to be written are not those of rank 0");
      own = std::make_unique<OpenPart>(file);
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        std::int64_t at = data + layout_.offsets[t] + parts_[t].begin;
        each_piece(tensors_[t], parts_[t], [&](std::span<const std::byte> bytes) {
          own->write(at, bytes);
          at += static_cast<std::int64_t>(bytes.size());
        });
      }
      own->flush();
    } catch (const Error& error) {
      failure = fmt::format("rank {}: {}", ranks_.rank(), error.what());
    }
    agree(failure);
    const std::vector<std::uint64_t> sums = checksums();
    failure.clear();
    if (ranks_.rank() == 0) try {
        finish(sums, *own);
      } catch (const Error& error) {
        failure = error.what();
      }
    failure = ranks_.broadcast(failure, 0, "the end of a checkpoint");
    if (!failure.empty()) throw FileError(failure);
  }

 private:
  // Lays the file out. On rank 0 it makes the file with its head; returns the error there, if any.
  std::string begin(const fs::path& path, const std::map<std::string, std::string>& metadata) {
    std::vector<std::pair<std::string, TensorType>> types;
    for (const TensorOfRanks& t : tensors_) types.emplace_back(t.name, t.whole);
    layout_ = lay_out(types, metadata, Checksums::all);
    if (ranks_.rank() != 0) return {};
    try {
      file_ = std::make_unique<AtomicFile>(fs::absolute(path));
      if (file_->temporary().empty())
        return fmt::format("{}: several ranks write parts of a file, but this is none",
                           path.string());
      file_->write(layout_.head);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  std::string temporary() const { return file_ ? file_->temporary().string() : ""; }

  std::string fingerprint() const {
    Hash64 hash;
    for (const TensorOfRanks& t : tensors_)
      hash.add(fmt::format("{} {}\n", t.name, to_string(t.whole)));
    return hex(hash.value());
  }

  // An error on every rank if any of them has one.
  void agree(const std::string& failure) {
    for (const std::string& text : ranks_.all_gather(failure, "the parts of a checkpoint"))
      if (!text.empty()) throw FileError(text);
  }

  // A tensor's hash covers all its bytes in order: each rank continues from the state of the rank
  // before it. In every round each rank works on a different tensor, so that none is idle.
  std::vector<std::uint64_t> checksums() {
    const std::size_t count = tensors_.size(), size = static_cast<std::size_t>(ranks_.size()),
                      rank = static_cast<std::size_t>(ranks_.rank());
    std::vector<std::uint64_t> sums(count);
    Hash64::State own{}, before{};
    std::vector<Communicator::Sent> send(size);
    std::vector<Communicator::Received> receive(size);
    for (std::size_t round = 0; round < count + size - 1; ++round) {
      const bool works = round >= rank && round - rank < count;
      if (works) {
        const std::size_t t = round - rank;
        Hash64 hash = rank == 0 ? Hash64() : Hash64::from(before);
        each_piece(tensors_[t], parts_[t],
                   [&](std::span<const std::byte> bytes) { hash.add(bytes); });
        sums[t] = hash.value();
        own = hash.state();
      }
      // The previous rank has just worked on the tensor that is this rank's next one.
      const bool next = rank > 0 && round + 1 >= rank && round + 1 - rank < count;
      if (rank + 1 < size) send[rank + 1] = works ? Communicator::Sent(own) : Communicator::Sent{};
      if (rank > 0)
        receive[rank - 1] = next ? Communicator::Received(before) : Communicator::Received{};
      ranks_.exchange(send, receive, "the checksums of a checkpoint");
    }
    ranks_.broadcast(std::as_writable_bytes(std::span(sums)), ranks_.size() - 1,
                     "the checksums of a checkpoint");
    return sums;
  }

  void finish(const std::vector<std::uint64_t>& sums, OpenPart& own) {
    std::string text;
    for (const std::uint64_t sum : sums) text += eight_bytes(sum);
    text += eight_bytes(Hash64().add(layout_.head).value());
    const auto end = static_cast<std::int64_t>(layout_.head.size()) + layout_.data_bytes;
    own.write(end - static_cast<std::int64_t>(text.size()), std::as_bytes(std::span(text)));
    file_->commit();
  }

  Communicator& ranks_;
  std::vector<TensorOfRanks> tensors_;
  std::vector<ByteRange> parts_;
  SafetensorsLayout layout_;
  std::unique_ptr<AtomicFile> file_;  // of rank 0
};

}  // namespace

ByteRange ByteRange::of(const TensorType& whole, const TensorType& range, int rank) {
  const std::int64_t all = whole.bytes().count, one = range.bytes().count,
                     begin = std::min(all, rank * one);
  return {begin, std::min(one, all - begin)};
}

void write_file_of_ranks(const fs::path& path, std::vector<TensorOfRanks> tensors,
                         const std::map<std::string, std::string>& metadata, Communicator& ranks) {
  Writing(std::move(tensors), ranks).run(path, metadata);
}

}  // namespace ebb::io
