// What checkpoints of a step and of an engine have in common: safetensors files with checksums,
// whose metadata names their format and holds the caller's notes beside counters and texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/io/checkpoint.h"
#include "ebb/io/safetensors.h"

namespace ebb::io {

inline constexpr std::string_view step_format = "ebb-checkpoint-2",
                                  engine_format = "ebb-multilevel-checkpoint-2";

void write_checkpoint_file(const std::filesystem::path& path, std::string_view format,
                           std::vector<NamedTensor> tensors,
                           std::map<std::string, std::string> metadata, const Notes& notes);

// Reads such a file and complains about it by name. The header has been checked; `check_tensors` of
// `file()` is the reader's to call.
class CheckpointFile {
 public:
  // `format`: the one expected; empty: any.
  CheckpointFile(const std::filesystem::path& path, std::string_view format);

  const SafetensorsFile& file() const { return file_; }
  const std::string& text(const std::string& key) const;  // of the metadata; must be there
  std::int64_t count(const std::string& key) const;       // the same as a number of at least 0
  std::uint64_t seed() const;
  Notes notes() const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::uint64_t number(const std::string& key, std::uint64_t most) const;

  SafetensorsFile file_;
};

}  // namespace ebb::io
