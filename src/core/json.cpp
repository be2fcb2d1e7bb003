#include "core/json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "ebb/error.h"

namespace ebb {
namespace {

constexpr std::size_t max_excerpt = 100;  // bytes

// Cuts the text at the beginning of a character.
std::string shortened(std::string text, std::size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  text.resize(size);
  return text + "...";
}

template <class Json>
Json parse(std::string_view text) {
  std::vector<std::unordered_set<std::string>> keys;  // of each object that is open
  const auto watch = [&](int depth, typename Json::parse_event_t event, Json& value) {
    using Event = typename Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_json_depth)
      throw ValueError(
          fmt::format("objects and lists are nested more than {} deep", max_json_depth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.template get<std::string>()).second)
      throw ValueError(fmt::format("the key {} comes twice", json_excerpt(value)));
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const typename Json::exception& e) {
    throw ValueError(fmt::format("not JSON: {}", shortened(plain_text(e), 2 * max_excerpt)));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text) { return parse<nlohmann::json>(text); }

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  return parse<nlohmann::ordered_json>(text);
}

std::string json_text(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string plain_text(const std::exception& json_exception) {
  std::string text = json_exception.what();
  if (!text.starts_with("[json.exception.")) return text;
  const std::size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

std::string json_excerpt(const nlohmann::json& value) {
  return shortened(json_text(value), max_excerpt);
}

}  // namespace ebb
