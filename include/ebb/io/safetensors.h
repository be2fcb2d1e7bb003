// Tensors in safetensors files: a JSON header, then the bytes. Tensors are read when they are asked
// for, straight into their final bytes; nothing is mapped, so that a file that shrinks meanwhile is
// an error and never a signal. Every byte of a header is treated as hostile.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ebb/tensor.h"
#include "ebb/variable.h"

namespace ebb::data {
class File;
}

namespace ebb::io {

class SafetensorsFile {
 public:
  struct Entry {
    TensorType type;
    std::int64_t begin = 0;  // of its bytes, from the start of the file
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // An entry that must be there; the error names the file and the closest name.
  const Entry& at(const std::string& name) const;

  // Copies an entry into a variable, converting between floating dtypes. Shapes must match.
  void load(const std::string& name, Variable variable) const;

  // The bytes of an entry: all at once, or one piece of at most 256 KiB after the other.
  std::vector<std::byte> bytes(const std::string& name) const;
  void each_piece(const std::string& name,
                  const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  void convert(const std::string& name, DType to, std::span<std::byte> out) const;

  std::shared_ptr<const data::File> file_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // with a value: a constant or a variable
};

// Writes the file whole or not at all. Entries are stored in order of name. Bytes of names and
// metadata that are not UTF-8 become U+FFFD.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace ebb::io
