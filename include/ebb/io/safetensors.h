// Tensors in safetensors files: a JSON header, then the bytes. Files are read by memory map, one
// tensor at a time, and every byte of a header is treated as hostile.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ebb/tensor.h"
#include "ebb/variable.h"

namespace ebb::io {

class SafetensorsFile {
 public:
  struct Entry {
    TensorType type;
    std::span<const std::byte> bytes;  // in the mapped file
  };

  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // An entry that must be there; the error names the file and the closest name.
  const Entry& at(const std::string& name) const;

  // Compare the file with its checksums: of the header, which is cheap, and of every tensor. What
  // differs, and a file that was written without any, is an error.
  void check_header() const;
  void check_tensors() const;

  // Copies an entry into a variable, converting between floating dtypes. Shapes must match.
  void load(const std::string& name, Variable variable) const;

 private:
  void parse();

  std::filesystem::path path_;
  std::span<const std::byte> file_;
  std::span<const std::byte> header_;     // with its length
  std::span<const std::byte> checksums_;  // empty: there are none
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // with a value: a constant or a variable
};

// With checksums, the metadata says {"checksums": "xxh64"}, and a last tensor of that name holds
// the hash of every tensor in order of name, then that of the header.
enum class Checksums : bool { none, all };

// Writes the file whole or not at all. Entries are stored in order of name.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       std::map<std::string, std::string> metadata = {},
                       Checksums checksums = Checksums::none);

}  // namespace ebb::io
