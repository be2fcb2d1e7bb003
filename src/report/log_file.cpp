#include "report/log_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/no_pipe_signal.h"
#include "ebb/error.h"

namespace ebb::report {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw FileError(fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(error)));
}

void make_folder_of(const std::filesystem::path& path) {
  if (!path.has_parent_path()) return;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) fail(path.parent_path(), "make the folder", error.value());
}

bool last_line_has_no_end(const std::filesystem::path& path, int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
    return false;
  const int reading = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (reading < 0) return false;  // a file that may be written but not read
  char last = '\n';
  const ssize_t got = pread(reading, &last, 1, status.st_size - 1);
  ::close(reading);
  return got == 1 && last != '\n';
}

}  // namespace

LogFile::~LogFile() {
  if (is_open()) ::close(descriptor_);
}

LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

LogFile LogFile::append_lines(const std::filesystem::path& path) {
  make_folder_of(path);
  // Without O_NONBLOCK, opening a pipe would wait for a reader.
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0 && errno == ENXIO)
    throw FileError(fmt::format("{}: cannot open the log: nobody reads from it", path.string()));
  if (descriptor < 0) fail(path, "open the log", errno);
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  LogFile file(path, descriptor);
  if (last_line_has_no_end(path, descriptor)) file.write("\n");
  return file;
}

LogFile LogFile::create(const std::filesystem::path& path) {
  make_folder_of(path);
  for (int i = 0;; ++i) {
    std::filesystem::path free = path;
    if (i > 0) free += fmt::format(".{}", i);
    const int descriptor =
        open(free.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor >= 0) return LogFile(std::move(free), descriptor);
    if (errno != EEXIST) fail(path, "create the log", errno);
  }
}

void LogFile::write(std::string_view record) {
  if (!is_open()) return;
  const NoPipeSignal guard;
  std::size_t written = 0;
  while (written < record.size()) {
    const ssize_t got = ::write(descriptor_, record.data() + written, record.size() - written);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      take_back(written);
      ::close(std::exchange(descriptor_, -1));
      fail(path_, "write the log, which ends here", error);
    }
    written += static_cast<std::size_t>(got);
  }
}

void LogFile::take_back(std::size_t written) {
  // After an appending write the position is its end. If another process has appended since, does
  // not truncate, to keep its records. A pipe has no position and cannot be truncated.
  const off_t end = lseek(descriptor_, 0, SEEK_CUR);
  struct stat status;
  if (written == 0 || end < 0 || fstat(descriptor_, &status) != 0 || status.st_size != end) return;
  [[maybe_unused]] const int cut = ftruncate(descriptor_, end - static_cast<off_t>(written));
}

void LogFile::close() {
  if (!is_open()) return;
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close the log", errno);
}

}  // namespace ebb::report
