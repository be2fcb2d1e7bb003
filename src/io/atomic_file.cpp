#include "ebb/io/atomic_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/no_pipe_signal.h"
#include "ebb/error.h"
#include "io/temporaries.h"
#include "io/write_target.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw FileError(fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
}

struct Temporary {
  fs::path path;
  int descriptor = -1;
};

// Makes and locks a file that did not exist; other threads of this process may write the same
// target.
Temporary make_temporary(const fs::path& file, mode_t mode) {
  for (int i = 0;; ++i) {
    Temporary made{file, -1};
    made.path += i == 0 ? fmt::format(".{}.tmp", getpid()) : fmt::format(".{}-{}.tmp", getpid(), i);
    made.descriptor = open(made.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (made.descriptor < 0 && errno == EEXIST) continue;
    if (made.descriptor < 0) return made;
    // Without lock support the cleanup does nothing either, since it removes only files it can
    // lock. A cleanup may have run between the two calls.
    flock(made.descriptor, LOCK_EX | LOCK_NB);
    struct stat status {};
    if (fstat(made.descriptor, &status) == 0 && status.st_nlink > 0) return made;
    close(made.descriptor);
  }
}

// Best effort: only root may change a file's owner.
void take_over(int descriptor, const struct stat& old) {
  if (fchown(descriptor, old.st_uid, old.st_gid) != 0) errno = 0;
  if (fchmod(descriptor, old.st_mode & 07777) != 0) errno = 0;
}

int open_in_place(const WriteTarget& target) {
  if (target.descriptor) return fcntl(*target.descriptor, F_DUPFD_CLOEXEC, 0);
  // Without O_NONBLOCK, opening a pipe would wait for a reader.
  const int descriptor = open(target.file.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor >= 0) fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  return descriptor;
}

}  // namespace

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)) {
  const WriteTarget place = write_target(target_);
  file_ = place.file;
  if (!place.is_regular()) {
    descriptor_ = open_in_place(place);
    if (descriptor_ < 0 && errno == ENXIO)
      throw FileError(
          fmt::format("{}: cannot write: nobody reads from the pipe", target_.string()));
    if (descriptor_ < 0) fail(target_, "open it for writing");
    return;
  }
  sweep_temporaries(folder_of(file_),
                    [&](const std::string& name) { return name == file_.filename(); });
  Temporary made = make_temporary(file_, place.found ? 0600 : 0666);
  if (made.descriptor < 0) fail(target_, "create the file");
  if (place.found) take_over(made.descriptor, *place.found);
  temporary_ = std::move(made.path);
  descriptor_ = made.descriptor;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  close(descriptor_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  const NoPipeSignal guard;
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(target_, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (temporary_.empty()) {
    if (close(std::exchange(descriptor_, -1)) != 0) fail(target_, "write");
    return;
  }
  // Renames while the lock is held: otherwise another process's cleanup could remove the file.
  if (fsync(descriptor_) != 0) fail(target_, "flush to disk");
  if (rename(temporary_.c_str(), file_.c_str()) != 0) fail(target_, "put the file in place");
  temporary_.clear();
  if (close(std::exchange(descriptor_, -1)) != 0) fail(target_, "write");
  // The rename itself must survive a crash too.
  const int directory = open(folder_of(file_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  fsync(directory);
  close(directory);
}

}  // namespace ebb::io
