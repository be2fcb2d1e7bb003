#include "data/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace ebb::data {

File::File(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_file(path_, "cannot open the file: {}", std::strerror(errno));
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    fail_file(path_, "not a regular file");
  }
  size_ = status.st_size;
}

File::~File() { close(descriptor_); }

void File::read(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(path_, "cannot read at offset {}: {}", offset, std::strerror(errno));
    if (got == 0)
      fail_file(path_, "{} more bytes are expected at offset {}, but the file ends there",
                out.size(), offset);
    offset += got;
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

void File::each_piece(const std::function<void(std::string_view)>& take) const {
  std::vector<char> piece(static_cast<std::size_t>(std::min<std::int64_t>(size_, 1 << 20)));
  for (std::int64_t at = 0; at < size_;) {
    const auto count =
        static_cast<std::size_t>(std::min(size_ - at, static_cast<std::int64_t>(piece.size())));
    read(at, std::as_writable_bytes(std::span(piece).first(count)));
    take({piece.data(), count});
    at += static_cast<std::int64_t>(count);
  }
}

std::string File::text(std::int64_t most) const {
  if (size_ > most)
    fail_file(path_, "at most {} bytes are expected, but the file has {}", most, size_);
  std::string all;
  all.reserve(static_cast<std::size_t>(size_));
  each_piece([&](std::string_view piece) { all += piece; });
  return all;
}

}  // namespace ebb::data
