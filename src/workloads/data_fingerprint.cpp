#include "ebb/workloads/data_fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/hash64.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/file.h"
#include "ebb/data/image_folder.h"
#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t sampled_items = 64, sampled_blocks = 64;
constexpr std::uint64_t hashed_whole = 64 << 20, block = 1 << 20;  // bytes

std::string of_items(const data::Dataset& items) {
  Hash64 hash;
  const std::int64_t count = std::min(sampled_items, items.size());
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t item = i * items.size() / count;
    for (const Tensor& tensor : items.batch({&item, 1}, RandomState{}).tensors) {
      bytes.resize(static_cast<std::size_t>(tensor.type().bytes().count));
      tensor.node()->storage()->read(bytes);
      hash.add(bytes);
    }
  }
  return fmt::format("{} items, {} of them with the hash {}", items.size(), count,
                     hex(hash.value()));
}

struct FileHash {
  std::uint64_t size, value;
  bool whole;  // or of samples
};

FileHash hash_of(const fs::path& path) {
  const data::File file(path);
  const auto size = static_cast<std::uint64_t>(file.size());
  const bool whole = size <= hashed_whole;
  const std::uint64_t blocks = whole ? (size + block - 1) / block : sampled_blocks;
  Hash64 hash;
  std::vector<std::byte> bytes(block);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t begin = whole ? i * block : i * ((size - block) / (blocks - 1));
    const std::uint64_t length = std::min(block, size - begin);
    const auto piece = std::span(bytes).first(static_cast<std::size_t>(length));
    file.read(static_cast<std::int64_t>(begin), piece);
    hash.add(piece);
  }
  return {size, hash.value(), whole};
}

std::string of_file(const fs::path& path) {
  const FileHash file = hash_of(path);
  return fmt::format("{} bytes, {} with the hash {}", file.size, file.whole ? "all" : "sampled",
                     hex(file.value));
}

// Every file in the folders of the classes, and in those of train/ and test/.
std::string of_images(const fs::path& folder) {
  constexpr int deepest = 2;  // of train/cats/1.png, counted from 0
  std::vector<fs::path> files;
  fs::recursive_directory_iterator at(folder, fs::directory_options::follow_directory_symlink), end;
  for (; at != end; ++at) {
    if (at.depth() == deepest) at.disable_recursion_pending();
    if (at.depth() > 0 && at->is_regular_file()) files.push_back(at->path());
  }
  std::sort(files.begin(), files.end());
  Hash64 hash;
  std::uint64_t bytes = 0;
  for (const fs::path& path : files) {
    const FileHash file = hash_of(path);
    bytes += file.size;
    hash.add(fmt::format("{} {}\n", path.lexically_relative(folder).string(), hex(file.value)));
  }
  return fmt::format("{} files of {} bytes with the hash {}", files.size(), bytes,
                     hex(hash.value()));
}

bool is_data(const fs::path& path) {
  const std::string extension = path.extension().string(), name = path.filename().string();
  for (const char* known : {".txt", ".bin", ".gz", ".csv", ".jsonl"})
    if (extension == known) return true;
  return name.ends_with("-ubyte") || name == "meta.pkl";
}

}  // namespace

DataFingerprint files_fingerprint(const std::optional<fs::path>& source) {
  DataFingerprint facts;
  const auto add = [&](const fs::path& file) {
    facts["file " + valid_utf8(file.filename().string())] = of_file(file);
  };
  if (source && fs::is_directory(*source)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(*source))
      if (entry.is_regular_file() && is_data(entry.path())) add(entry.path());
    if (data::is_image_folder(*source)) facts["images"] = of_images(*source);
  } else if (source && fs::is_regular_file(*source)) {
    add(*source);
    const fs::path meta = source->parent_path() / "meta.pkl";  // of nanoGPT's tokens
    if (source->extension() == ".bin" && fs::is_regular_file(meta)) add(meta);
  }
  return facts;
}

DataFingerprint model_fingerprint(const Options& options) {
  DataFingerprint facts;
  const auto add = [&](const std::optional<fs::path>& folder, const std::string& whose,
                       const auto& counts) {
    if (!folder || !fs::is_directory(*folder)) return;
    for (const fs::directory_entry& entry : fs::directory_iterator(*folder)) {
      const std::string name = entry.path().filename().string();
      if (counts(name) && entry.is_regular_file())
        facts[fmt::format("{} {}", whose, valid_utf8(name))] = of_file(entry.path());
    }
  };
  add(options.model, "model", [](const std::string& name) {
    return name == "config.json" || name == "tokenizer.json" || name.ends_with(".safetensors") ||
           name == "model.safetensors.index.json";
  });
  add(options.adapter, "adapter", [](const std::string& name) {
    return name == "adapter_config.json" || name == "adapter_model.safetensors";
  });
  return facts;
}

DataFingerprint data_fingerprint(const std::optional<fs::path>& source,
                                 const data::Dataset& items) {
  DataFingerprint facts = files_fingerprint(source);
  facts["items"] = of_items(items);
  return facts;
}

DataFingerprint data_fingerprint_from_json(std::string_view text) {
  const nlohmann::json json = parse_json(text);
  if (!json.is_object())
    throw ValueError(fmt::format("expected an object of facts, but found {}", json_excerpt(json)));
  DataFingerprint facts;
  for (const auto& [name, fact] : json.items())
    facts[name] = fact.is_string() ? fact.get<std::string>() : fact.dump();
  return facts;
}

}  // namespace ebb::workloads
