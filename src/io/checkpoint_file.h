// The common format of checkpoints of steps and engines: safetensors files with checksums, whose
// metadata contains the format's name, counters, texts and the caller's notes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/io/checkpoint.h"
#include "ebb/io/safetensors.h"
#include "io/file_of_ranks.h"

namespace ebb::io {

inline constexpr std::string_view step_format = "ebb-checkpoint-2",
                                  engine_format = "ebb-multilevel-checkpoint-2";

void write_checkpoint_file(const std::filesystem::path& path, std::string_view format,
                           std::vector<NamedTensor> tensors,
                           std::map<std::string, std::string> metadata, const Notes& notes);

// The same by all ranks of a run together (file_of_ranks.h).
void write_checkpoint_file(const std::filesystem::path& path, std::string_view format,
                           std::vector<TensorOfRanks> tensors,
                           std::map<std::string, std::string> metadata, const Notes& notes,
                           Communicator& ranks);

// Reads such a file; errors name it. The constructor checks the header; callers must call
// `check_tensors` of `file()`.
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
