#include "io/json_file.h"

#include <fmt/core.h>

#include <cmath>

#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"

namespace ebb::io {
JsonFile::JsonFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::string text = data::File(path_).text(max_json_file);
  try {
    json_ = parse_json(text);
  } catch (const ValueError& e) {
    fail(e.what());
  }
  if (!json_.is_object()) fail("expected a JSON object");
}

void JsonFile::fail(const std::string& what) const {
  throw FileError(fmt::format("{}: {}", path_.string(), what));
}

const nlohmann::json* JsonFile::find(const char* field, bool required) const {
  const auto found = json_.find(field);
  if (found != json_.end() && !found->is_null()) return &*found;
  if (required) fail(fmt::format("the field \"{}\" is missing", field));
  return nullptr;
}

std::int64_t JsonFile::integer(const char* field, std::int64_t low,
                               std::optional<std::int64_t> otherwise) const {
  const auto* value = find(field, !otherwise);
  if (!value) return *otherwise;
  if (!value->is_number_integer() || value->get<std::int64_t>() < low ||
      value->get<std::int64_t>() > (std::int64_t{1} << 40))
    fail(fmt::format("\"{}\" must be a whole number of at least {}, but is {}", field, low,
                     json_excerpt(*value)));
  return value->get<std::int64_t>();
}

double JsonFile::real(const char* field, std::optional<double> otherwise) const {
  const auto* value = find(field, !otherwise);
  if (!value) return *otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    fail(fmt::format("\"{}\" must be a number, but is {}", field, json_excerpt(*value)));
  return value->get<double>();
}

bool JsonFile::flag(const char* field, bool otherwise) const {
  const auto* value = find(field, false);
  if (!value) return otherwise;
  if (!value->is_boolean())
    fail(fmt::format("\"{}\" must be true or false, but is {}", field, json_excerpt(*value)));
  return value->get<bool>();
}

std::string JsonFile::text(const char* field, std::optional<std::string> otherwise) const {
  const auto* value = find(field, !otherwise);
  if (!value) return *otherwise;
  if (!value->is_string())
    fail(fmt::format("\"{}\" must be a string, but is {}", field, json_excerpt(*value)));
  return value->get<std::string>();
}

}  // namespace ebb::io
