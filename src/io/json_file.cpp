#include "io/json_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <vector>

#include "ebb/error.h"

namespace ebb::io {
namespace {

constexpr int max_depth = 64;
constexpr std::uintmax_t max_bytes = 100'000'000;  // an index of many tensors has some millions

}  // namespace

JsonFile::JsonFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  if (std::filesystem::exists(path_, error) && !std::filesystem::is_regular_file(path_, error))
    fail("not a regular file");  // opening a pipe would wait for its other end
  if (const auto size = std::filesystem::file_size(path_, error); !error && size > max_bytes)
    fail(fmt::format("{} bytes are more than a file of settings may have ({})", size, max_bytes));
  std::ifstream file(path_, std::ios::binary);
  if (!file) fail(fmt::format("cannot open the file: {}", std::strerror(errno)));
  // Of repeated keys all but one would be dropped without a word.
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > max_depth) fail(fmt::format("values are nested more than {} deep", max_depth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      fail(fmt::format("the field \"{}\" is there twice", value.get<std::string>()));
    return true;
  };
  try {
    json_ = nlohmann::json::parse(file, watch);
  } catch (const nlohmann::json::exception& e) {
    fail(fmt::format("not JSON: {}", e.what()));
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
                     value->dump()));
  return value->get<std::int64_t>();
}

double JsonFile::real(const char* field, std::optional<double> otherwise) const {
  const auto* value = find(field, !otherwise);
  if (!value) return *otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    fail(fmt::format("\"{}\" must be a number, but is {}", field, value->dump()));
  return value->get<double>();
}

bool JsonFile::flag(const char* field, bool otherwise) const {
  const auto* value = find(field, false);
  if (!value) return otherwise;
  if (!value->is_boolean())
    fail(fmt::format("\"{}\" must be true or false, but is {}", field, value->dump()));
  return value->get<bool>();
}

std::string JsonFile::text(const char* field, std::optional<std::string> otherwise) const {
  const auto* value = find(field, !otherwise);
  if (!value) return *otherwise;
  if (!value->is_string())
    fail(fmt::format("\"{}\" must be a string, but is {}", field, value->dump()));
  return value->get<std::string>();
}

}  // namespace ebb::io
