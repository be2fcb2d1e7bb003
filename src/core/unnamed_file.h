// A file without a name, whose space is reserved when it is made.
#pragma once

#include <cstdint>
#include <filesystem>

#include "ebb/bytes.h"

namespace ebb {

class UnnamedFile {
 public:
  enum class Cache : std::uint8_t { bypass_if_possible, use };
  // How space is reserved. Where the file system has no fallocate, zeros are written.
  enum class Reserve : std::uint8_t { fallocate_if_possible, zeros };

  // See OffloadFile, which has functions of these names.
  UnnamedFile(const std::filesystem::path& folder, Bytes size,
              Cache cache = Cache::bypass_if_possible,
              Reserve reserve = Reserve::fallocate_if_possible);
  ~UnnamedFile();
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  int descriptor() const { return descriptor_.number; }
  Bytes size() const { return size_; }
  Bytes alignment() const { return alignment_; }
  bool direct() const { return direct_; }

  // Sends these bytes to the disk and removes them from the page cache, unless it is bypassed or
  // holds the file itself. Returns an error number, or 0.
  int flush_written(Bytes offset, Bytes size) const;
  void drop_cached(Bytes offset, Bytes size) const;

 private:
  struct Descriptor {
    int number = -1;
    ~Descriptor();
  };

  void open();
  void reserve(Reserve how);
  void write_zeros();
  void bypass_cache();

  std::filesystem::path folder_;
  Bytes size_, alignment_ = 4_KiB;
  bool in_memory_ = false;  // tmpfs or ramfs: the page cache is the file
  bool direct_ = false;
  Descriptor descriptor_;
};

// The bytes of the disk that hold a file's contents, without those that the file system takes to
// find them. Where it does not tell, all of its blocks.
Bytes allocated_bytes(int descriptor);

}  // namespace ebb
