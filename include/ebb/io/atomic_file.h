// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace ebb::io {

// Written beside its target under a temporary name (NAME.PID.tmp), flushed to disk, then renamed
// into place by commit(). Without a commit the target is untouched and the temporary file is
// removed.
//
// - An existing file keeps its permissions and, where the system allows it, its owner. A file that
//   this process may not write is an error.
// - A symbolic link stays: the file it points to is replaced, or created if it does not exist.
// - A pipe or a character device (/dev/null, a terminal) is written into, as are the files that the
//   process was started with (/dev/stdout, /dev/fd/3). Such output cannot be undone. A pipe without
//   a reader is an error.
// - A folder, a socket and a block device are errors.
// - Temporary files of the same target whose writer is gone are removed. A writer holds a lock on
//   its temporary file, so the file of an active writer, in this process or another, is never
//   removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

  // Where the bytes go until then, so that several processes can write parts of one file; empty
  // where the target itself is written.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  std::filesystem::path target_;     // as it was named, for messages
  std::filesystem::path file_;       // the target without its symbolic links
  std::filesystem::path temporary_;  // empty where the target itself is written
  int descriptor_ = -1;
};

}  // namespace ebb::io
