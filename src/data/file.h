// Files as all readers see them: read at any offset, by any number of threads, never mapped, so
// that a file that shrinks meanwhile is an error and its pages are not the process's.
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

  // Fills `out` from `offset`; a file that ends before is an error.
  void read(std::int64_t offset, std::span<std::byte> out) const;

  // The whole file, one piece of at most a mebibyte after the other.
  void each_piece(const std::function<void(std::string_view)>& take) const;

  // The whole file, of at most `most` bytes.
  std::string text(std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace ebb::data
