// JSON objects from files, read field by field with errors that name the file and the field.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace ebb::io {

// Settings are short; the list of a sharded model's tensors is the longest.
inline constexpr std::int64_t max_json_file = 64 << 20;  // bytes

class JsonFile {
 public:
  explicit JsonFile(std::filesystem::path path);

  std::int64_t integer(const char* field, std::int64_t low,
                       std::optional<std::int64_t> otherwise = {}) const;
  double real(const char* field, std::optional<double> otherwise = {}) const;
  bool flag(const char* field, bool otherwise) const;
  std::string text(const char* field, std::optional<std::string> otherwise = {}) const;
  const nlohmann::json& json() const { return json_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const nlohmann::json* find(const char* field, bool required) const;

  std::filesystem::path path_;
  nlohmann::json json_;
};

}  // namespace ebb::io
