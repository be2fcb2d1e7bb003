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
    fail_file(path_, "{} bytes are more than a file of images has", plain.size());
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

}  // namespace ebb::data
