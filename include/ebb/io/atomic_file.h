// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace ebb::io {

// Written beside its target under a temporary name, flushed to disk, then renamed into place by
// commit(). Without a commit the target is untouched and the temporary file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
};

}  // namespace ebb::io
