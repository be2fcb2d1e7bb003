#include "io/checkpoint_file.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>

#include "ebb/error.h"

namespace ebb::io {
namespace {

constexpr std::string_view note = "note.";

void complete(std::map<std::string, std::string>& metadata, std::string_view format,
              const Notes& notes) {
  metadata["format"] = format;
  for (const auto& [key, value] : notes) metadata[std::string(note) + key] = value;
}

}  // namespace

void write_checkpoint_file(const std::filesystem::path& path, std::string_view format,
                           std::vector<NamedTensor> tensors,
                           std::map<std::string, std::string> metadata, const Notes& notes) {
  complete(metadata, format, notes);
  write_safetensors(path, std::move(tensors), std::move(metadata), Checksums::all);
}

void write_checkpoint_file(const std::filesystem::path& path, std::string_view format,
                           std::vector<TensorOfRanks> tensors,
                           std::map<std::string, std::string> metadata, const Notes& notes,
                           Communicator& ranks) {
  complete(metadata, format, notes);
  write_file_of_ranks(path, std::move(tensors), metadata, ranks);
}

CheckpointFile::CheckpointFile(const std::filesystem::path& path, std::string_view format)
    : file_(path) {
  const std::string& found = text("format");
  if (found == "ebb-checkpoint-1" || found == "ebb-multilevel-checkpoint-1")
    fail(
        "it was written by an earlier ebb, without checksums and without the specification of "
        "its run, and cannot be resumed");
  if (format.empty() ? found != step_format && found != engine_format : found != format)
    fail(fmt::format("its format is \"{}\", but \"{}\" is expected", found,
                     format.empty() ? step_format : format));
  file_.check_header();
}

void CheckpointFile::fail(const std::string& what) const {
  throw FileError(fmt::format("{}: {}", file_.path().string(), what));
}

const std::string& CheckpointFile::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end())
    fail(fmt::format("not a checkpoint: \"{}\" is missing", key));
  return found->second;
}

std::uint64_t CheckpointFile::number(const std::string& key, std::uint64_t most) const {
  const std::string& digits = text(key);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value > most)
    fail(fmt::format("\"{}\" must be a whole number of at most {}, but is \"{}\"", key, most,
                     digits));
  return value;
}

std::int64_t CheckpointFile::count(const std::string& key) const {
  return static_cast<std::int64_t>(number(key, std::numeric_limits<std::int64_t>::max()));
}
std::uint64_t CheckpointFile::seed() const {
  return number("seed", std::numeric_limits<std::uint64_t>::max());
}

Notes CheckpointFile::notes() const {
  Notes notes;
  for (const auto& [key, value] : file_.metadata())
    if (key.starts_with(note)) notes.emplace(key.substr(note.size()), value);
  return notes;
}

}  // namespace ebb::io
