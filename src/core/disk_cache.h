// Cached results of slow, deterministic computations, in the user's cache folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ebb {

class DiskCache {
 public:
  // One entry: a file of this folder. The key must contain everything that the value depends on.
  DiskCache(const std::string& folder, const std::string& key);

  std::optional<std::string> read() const;
  // Errors are ignored: a cache is optional.
  void write(const std::string& value) const;

 private:
  std::string key_;
  std::filesystem::path file_;  // empty where there is no cache folder
};

}  // namespace ebb
