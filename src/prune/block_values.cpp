#include "prune/block_values.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "core/unnamed_file.h"
#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/program.h"
#include "ebb/storage.h"

namespace ebb::prune {
namespace {

// Moves all bytes with pread or pwrite, which may move fewer at once.
template <class Byte, class Move>
void move_all(const UnnamedFile& file, std::span<Byte> bytes, std::int64_t at, const char* what,
              const Move& move) {
  while (!bytes.empty()) {
    const ssize_t moved = move(file.descriptor(), bytes.data(), bytes.size(), at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0)
      throw FileError(fmt::format("{}: cannot {} the values between blocks: {}",
                                  file.folder().string(), what,
                                  std::strerror(moved < 0 ? errno : EIO)));
    at += moved, bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
}

}  // namespace

BlockValues::BlockValues(const TensorType& type, std::size_t count,
                         const std::optional<std::filesystem::path>& folder)
    : type_(type), count_(count) {
  if (folder)
    file_ = std::make_unique<UnnamedFile>(*folder, static_cast<std::int64_t>(count) * type.bytes(),
                                          UnnamedFile::Cache::use);
  else
    values_.resize(count);
}
BlockValues::~BlockValues() = default;
BlockValues::BlockValues(BlockValues&&) noexcept = default;

Tensor BlockValues::get(std::size_t i) const {
  if (!file_) return values_[i];
  const Bytes size = type_.bytes(), at = static_cast<std::int64_t>(i) * size;
  std::vector<std::byte> bytes(static_cast<std::size_t>(size.count));
  move_all(*file_, std::span(bytes), at.count, "read",
           [](auto... arguments) { return pread(arguments...); });
  file_->drop_cached(at, size);
  return Tensor::from_bytes(bytes, type_);
}

void BlockValues::set(std::size_t i, const Tensor& value) {
  if (!file_) {
    values_[i] = value;
    return;
  }
  const Bytes size = type_.bytes(), at = static_cast<std::int64_t>(i) * size;
  const Tensor here = to_device(value, device::cpu);
  move_all(*file_,
           std::span(static_cast<const std::byte*>(here.node()->storage()->data()),
                     static_cast<std::size_t>(size.count)),
           at.count, "write", [](auto... arguments) { return pwrite(arguments...); });
  if (const int error = file_->flush_written(at, size); error != 0)
    throw FileError(fmt::format("{}: cannot write the values between blocks: {}",
                                file_->folder().string(), std::strerror(error)));
  file_->drop_cached(at, size);
}

}  // namespace ebb::prune
