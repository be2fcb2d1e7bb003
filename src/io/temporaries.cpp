#include "io/temporaries.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <system_error>

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

// The name of the target; no value for files that are no such temporaries.
std::optional<std::string> name_of_target(std::string name) {
  if (!name.ends_with(".tmp")) return {};
  name.resize(name.size() - 4);
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot + 1 == name.size()) return {};
  if (name.find_first_not_of("0123456789-", dot + 1) != std::string::npos) return {};
  return name.substr(0, dot);
}

void remove_if_abandoned(const fs::path& file) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return;
  struct stat status {};
  if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
      flock(descriptor, LOCK_EX | LOCK_NB) == 0)
    unlink(file.c_str());
  close(descriptor);
}

}  // namespace

void sweep_temporaries(const fs::path& folder,
                       const std::function<bool(const std::string& name)>& of) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const auto target = name_of_target(at->path().filename().string()); target && of(*target))
      remove_if_abandoned(at->path());
}

}  // namespace ebb::io
