#include "data/gzip.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "data/file.h"

namespace ebb::data {
namespace {

constexpr std::int64_t most_expansion = 1032;  // of deflate: 258 bytes from two bits

gzFile zlib(void* handle) { return static_cast<gzFile>(handle); }

}  // namespace

GzipFile::GzipFile(std::filesystem::path path) : path_(std::move(path)) {
  const File plain(path_);  // a regular file, or an error that says why not
  if (__builtin_mul_overflow(plain.size(), most_expansion, &most_bytes_))
    fail_file(path_, "{} bytes are more than a compressed file here may have", plain.size());
  const int descriptor = fcntl(plain.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) fail_file(path_, "cannot open the file: {}", std::strerror(errno));
  handle_ = gzdopen(descriptor, "rb");
  if (handle_ == nullptr) {
    close(descriptor);
    throw std::bad_alloc();  // the only possible reason
  }
  if (gzdirect(zlib(handle_)) != 0) most_bytes_ = plain.size();
}

GzipFile::~GzipFile() { gzclose_r(zlib(handle_)); }

std::size_t GzipFile::some(std::span<std::byte> out) {
  const auto most = static_cast<unsigned>(std::min<std::size_t>(out.size(), 1u << 30));
  const int got = gzread(zlib(handle_), out.data(), most);
  int code = Z_OK;
  const char* message = gzerror(zlib(handle_), &code);
  // zlib reports truncated data with Z_BUF_ERROR after the last available bytes.
  if (got < 0 || (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR))
    fail_file(path_, "offset {}: gzip data are damaged: {}", offset_, message);
  if (got == 0 && code == Z_BUF_ERROR)
    fail_file(path_, "offset {}: gzip data end in the middle", offset_);
  offset_ += got;
  return static_cast<std::size_t>(got);
}

void GzipFile::read(std::span<std::byte> out) {
  while (!out.empty()) {
    const std::size_t got = some(out);
    if (got == 0)
      fail_file(path_, "{} more bytes are expected at offset {}, but the data end there",
                out.size(), offset_);
    out = out.subspan(got);
  }
}

void GzipFile::expect_end() {
  std::byte extra{};
  if (some({&extra, 1}) != 0)
    fail_file(path_, "the data should end at offset {}, but more follow", offset_ - 1);
}

bool is_gzip(const std::filesystem::path& path) { return path.extension() == ".gz"; }

std::filesystem::path without_gzip(const std::filesystem::path& path) {
  return is_gzip(path) ? path.parent_path() / path.stem() : path;
}

// Memory grows with the data that are read: a compressed file may claim a thousand times its size.
std::string whole_text(const std::filesystem::path& path, std::int64_t most) {
  if (!is_gzip(path)) return File(path).text(most);
  GzipFile file(path);
  constexpr std::size_t piece = 1 << 20;
  std::string text;
  for (;;) {
    const std::size_t at = text.size();
    text.resize(at + piece);
    const std::size_t got = file.some(std::as_writable_bytes(std::span(text)).subspan(at));
    text.resize(at + got);
    if (got == 0) return text;
    if (static_cast<std::int64_t>(text.size()) > most)
      fail_file(path, "at most {} bytes of text are read, but more are in it", most);
  }
}

}  // namespace ebb::data
