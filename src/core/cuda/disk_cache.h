// What takes time to make and is the same every time, kept in the user's cache folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ebb::cuda {

class DiskCache {
 public:
  // One entry: a file of this folder, found by all that its value depends on.
  DiskCache(const std::string& folder, const std::string& key);

  std::optional<std::string> read() const;
  // A cache that cannot be written is done without.
  void write(const std::string& value) const;

 private:
  std::string key_;
  std::filesystem::path file_;  // empty where there is no cache folder
};

}  // namespace ebb::cuda
