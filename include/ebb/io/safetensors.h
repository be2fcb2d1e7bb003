// Tensors in safetensors files: a JSON header, then the bytes. Tensors are read when they are asked
// for, straight into their final bytes; files are not memory-mapped, so a file that shrinks while
// it is read is an error and never a signal. The header is treated as untrusted input.
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

  // Compare the file with its checksums: of the header, which is cheap, and of every tensor. A
  // difference, or a file without checksums, is an error.
  void check_header() const;
  void check_tensors() const;

  // An error unless `load` can fill a variable of this type from the entry.
  void require_loadable(const std::string& name, const TensorType& type) const;
  // The values of a floating-point entry in float32, one piece after the other.
  void each_float_piece(const std::string& name,
                        const std::function<void(std::span<const float>)>& take) const;
  // Copies an entry into a variable, converting between floating dtypes. Shapes must match.
  void load(const std::string& name, Variable variable) const;

  // The bytes of an entry: all at once, or one piece of at most 256 KiB after the other.
  std::vector<std::byte> bytes(const std::string& name) const;
  // As many of them as fit, from number `from` on.
  void read(const std::string& name, std::int64_t from, std::span<std::byte> bytes) const;
  void each_piece(const std::string& name,
                  const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  void convert(const std::string& name, DType to, std::span<std::byte> out) const;
  void each_piece(const Entry& entry,
                  const std::function<void(std::span<const std::byte>)>& take) const;
  void take_checksums();

  std::shared_ptr<const data::File> file_;
  std::int64_t data_begin_ = 0;           // of the file: where the header ends
  std::vector<std::uint64_t> checksums_;  // of tensors in order of name, then of the header
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  // A constant or a variable with a value; or one that is computed when it is written.
  Tensor tensor;
  // Instead of a value: gives the bytes when they are to be written, and their type.
  std::function<std::vector<std::byte>()> bytes = {};
  TensorType type = {};
};

// With checksums, the metadata says {"checksums": "xxh64"}, and a last tensor of that name holds
// the hashes of all tensors in order of name, then the hash of the header.
enum class Checksums : bool { none, all };

// Writes the file whole or not at all. Entries are stored in order of name. Bytes of names and
// metadata that are not UTF-8 become U+FFFD.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       std::map<std::string, std::string> metadata = {},
                       Checksums checksums = Checksums::none);

}  // namespace ebb::io
