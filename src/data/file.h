// The file interface of all readers: reads at any offset from any number of threads. Files are not
// memory-mapped, so a file that shrinks is an error, and its pages do not count as memory of the
// process.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/error.h"

namespace ebb::data {

template <class... Args>
[[noreturn]] void fail_file(const std::filesystem::path& path, fmt::format_string<Args...> format,
                            Args&&... args) {
  throw FileError(path.string() + ": " + fmt::format(format, std::forward<Args>(args)...));
}

class File {
 public:
  explicit File(std::filesystem::path path);  // must be a regular file
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }  // bytes, when it was opened
  int descriptor() const { return descriptor_; }

  // Fills `out` from `offset`; a shorter file is an error.
  void read(std::int64_t offset, std::span<std::byte> out) const;

  // The whole file, in pieces of at most 1 MiB.
  void each_piece(const std::function<void(std::string_view)>& take) const;

  // The whole file, of at most `most` bytes.
  std::string text(std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace ebb::data
