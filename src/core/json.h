// JSON as ebb reads and writes it. Text from files is untrusted: nesting is bounded, because
// printing and copying a value recurse, and a repeated key is an error, because all but one of its
// values would be ignored. Output is valid UTF-8 for any bytes in a path or name.
#pragma once

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ebb {

inline constexpr int max_json_depth = 64;

// Throw a ValueError that describes the error in the text.
nlohmann::json parse_json(std::string_view text);
nlohmann::ordered_json parse_ordered_json(std::string_view text);

// One line, or lines indented by `indent` spaces. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

// For error messages: at most about a hundred characters of the value's text.
std::string json_excerpt(const nlohmann::json& value);

// What an exception of the JSON library says, without its number: "key 'rows' not found".
std::string plain_text(const std::exception& json_exception);

}  // namespace ebb
