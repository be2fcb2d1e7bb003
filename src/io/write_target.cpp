#include "io/write_target.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "ebb/error.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

constexpr int max_links = 40;  // as Linux does

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw FileError(fmt::format("{}: {}", path.string(), what));
}

// The number N of /proc/self/fd/N, however it is spelled (/dev/fd/N, /proc/PID/fd/N). Opening such
// a path would start a second position in the same file, and fail for sockets.
std::optional<int> own_descriptor(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(folder_of(path), error);
  if (error || folder != fmt::format("/proc/{}/fd", getpid())) return {};
  const std::string name = path.filename().string();
  int number = -1;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (code != std::errc{} || end != name.data() + name.size()) return {};
  return number;
}

}  // namespace

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

WriteTarget write_target(const fs::path& path) {
  WriteTarget target{path, {}, {}};
  struct stat status {};
  for (int links = 0;; ++links) {
    if (lstat(target.file.c_str(), &status) != 0) {
      if (errno != ENOENT) fail(path, fmt::format("cannot write there: {}", std::strerror(errno)));
      return target;
    }
    if (!S_ISLNK(status.st_mode)) break;
    target.descriptor = own_descriptor(target.file);
    if (target.descriptor) return target;
    if (links == max_links) fail(path, "cannot write there: symbolic links lead in a circle");
    std::error_code error;
    const fs::path next = fs::read_symlink(target.file, error);
    if (error) fail(path, fmt::format("cannot follow the symbolic link: {}", error.message()));
    target.file = folder_of(target.file) / next;  // only `next` if it is absolute
  }
  if (S_ISDIR(status.st_mode)) fail(path, "a file is to be written, but this is a folder");
  if (S_ISSOCK(status.st_mode)) fail(path, "a file is to be written, but this is a socket");
  if (S_ISBLK(status.st_mode)) fail(path, "a file is to be written, but this is a block device");
  if (S_ISREG(status.st_mode) && faccessat(AT_FDCWD, target.file.c_str(), W_OK, AT_EACCESS) != 0)
    fail(path, fmt::format("cannot write the file: {}", std::strerror(errno)));
  target.found = status;
  return target;
}

}  // namespace ebb::io
