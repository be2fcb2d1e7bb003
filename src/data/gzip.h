// A file that may be gzip, read from its start; plain files pass through unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace ebb::data {

class GzipFile {
 public:
  explicit GzipFile(std::filesystem::path path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // The most bytes it can hold, known without reading it: a bound for allocations.
  std::int64_t most_bytes() const { return most_bytes_; }

  // Fills `out` with the next bytes; shorter data are an error.
  void read(std::span<std::byte> out);

  // As many of the next bytes as there are, at most `out.size()`; 0 at the end of the data.
  std::size_t some(std::span<std::byte> out);

  // Nothing may follow. Checks gzip's own checksum.
  void expect_end();

 private:
  std::filesystem::path path_;
  void* handle_ = nullptr;  // zlib's gzFile
  std::int64_t most_bytes_ = 0, offset_ = 0;
};

// Whether a file's name says that it is compressed: "input.txt.gz".
bool is_gzip(const std::filesystem::path& path);
// The name without ".gz".
std::filesystem::path without_gzip(const std::filesystem::path& path);

// The whole text of a file that may be compressed. More than `most` bytes are an error.
inline constexpr std::int64_t most_text = std::int64_t{8} << 30;
std::string whole_text(const std::filesystem::path& path, std::int64_t most = most_text);

}  // namespace ebb::data
