// The target of a file to be written, with symbolic links resolved.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>

namespace ebb::io {

struct WriteTarget {
  std::filesystem::path file;        // no symbolic link, unless it is one of /proc
  std::optional<struct stat> found;  // nothing where no file is there yet
  std::optional<int> descriptor;     // the path names this open file of the process itself

  bool is_regular() const { return !descriptor && (!found || S_ISREG(found->st_mode)); }
};

// Follows links. Throws FileError for a folder, a socket, a block device, a file or folder without
// permission, or a cycle of links.
WriteTarget write_target(const std::filesystem::path& path);

std::filesystem::path folder_of(const std::filesystem::path& file);

}  // namespace ebb::io
