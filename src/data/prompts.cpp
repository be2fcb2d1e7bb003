#include "data/prompts.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "data/file.h"
#include "data/gzip.h"
#include "ebb/data/sequences.h"

namespace ebb::data {
namespace {

Prompt prompt_of(const std::filesystem::path& path, std::size_t line, std::string_view text) {
  const nlohmann::json object = [&] {
    try {
      return parse_json(text);
    } catch (const ValueError& error) {
      fail_file(path, "line {}: {}", line, error.what());
    }
  }();
  const bool single = object.is_object() && object.size() == 1;
  if (single && object.contains("prompt") && object["prompt"].is_string())
    return object["prompt"].get<std::string>();
  if (single && object.contains("ids") && object["ids"].is_array()) {
    std::vector<std::int32_t> ids;
    for (const nlohmann::json& id : object["ids"]) {
      if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<std::int32_t>::max())
        fail_file(path, "line {}: {} is not an id", line, json_excerpt(id));
      ids.push_back(id.get<std::int32_t>());
    }
    return ids;
  }
  fail_file(path,
            "line {}: an object with one field, the text \"prompt\" or the list \"ids\", is "
            "expected, but {} came",
            line, json_excerpt(object));
}

}  // namespace

std::vector<Prompt> read_prompts(const std::filesystem::path& path) {
  const std::string text = whole_text(path);
  const bool json = is_json_lines(path);
  std::vector<Prompt> prompts;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number, begin = end + 1;
    if (line.empty()) fail_file(path, "line {} is empty, but each line is a prompt", number);
    prompts.push_back(json ? prompt_of(path, number, line) : Prompt(std::string(line)));
  }
  if (prompts.empty()) fail_file(path, "it has no prompts");
  return prompts;
}

}  // namespace ebb::data
