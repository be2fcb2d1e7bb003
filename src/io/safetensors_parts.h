// A safetensors file whose tensors are written in any order, whole or in parts: the same file that
// write_safetensors writes. It appears under its name when all bytes are there, or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ebb/io/atomic_file.h"
#include "ebb/tensor.h"

namespace ebb::io {

class SafetensorsParts {
 public:
  // Writes the header, and reserves the space of all tensors where the file system can. The path
  // must be that of a regular file.
  SafetensorsParts(const std::filesystem::path& path,
                   std::vector<std::pair<std::string, TensorType>> tensors,
                   std::map<std::string, std::string> metadata);
  ~SafetensorsParts();
  SafetensorsParts(const SafetensorsParts&) = delete;
  SafetensorsParts& operator=(const SafetensorsParts&) = delete;

  // Bytes of a tensor from number `from` on. Every byte is written once.
  void write(const std::string& name, std::int64_t from, std::span<const std::byte> bytes);
  // A ValueError if bytes are missing.
  void commit();

 private:
  struct Entry {
    std::int64_t begin = 0, size = 0;  // in the file
    std::int64_t written = 0;
  };
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  AtomicFile file_;
  int descriptor_ = -1;
  std::map<std::string, Entry> entries_;
};

}  // namespace ebb::io
