// Readers of labelled text files.
#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "data/csv.h"
#include "data/file.h"
#include "data/gzip.h"
#include "data/items.h"
#include "ebb/data/labelled_text.h"

namespace ebb::data {
namespace {

// What to type if labels were meant to start from the other number.
std::string hint(std::int64_t label, std::int64_t classes, std::int64_t first) {
  const bool other = first == 1 ? label == 0 : label == classes;
  return other ? fmt::format("; labels that count from {} are read with labels-from {}", 1 - first,
                             1 - first)
               : "";
}

void check_classes(std::int64_t classes, std::int64_t first_label) {
  require(first_label == 0 || first_label == 1, "LabelledTexts",
          fmt::format("labels count from 0 or 1, but {} came", first_label));
  require(classes > 0 && classes <= std::numeric_limits<std::int32_t>::max(), "LabelledTexts",
          fmt::format("at least one class is expected, but {} came", classes));
}

LabelledTextsPtr finished(const std::filesystem::path& path, LabelledTexts&& result) {
  if (result.texts.empty()) fail_file(path, "labelled texts are expected, but the file has none");
  return std::make_shared<LabelledTexts>(std::move(result));
}

// A field as error messages show it: it may be long or not printable.
std::string shown(std::string_view field) {
  std::string result;
  for (char c : field.substr(0, 40)) result += c >= ' ' && c <= '~' ? c : '?';
  return field.size() > 40 ? result + "..." : result;
}

}  // namespace

LabelledTextsPtr read_labelled_csv(const std::filesystem::path& path, std::int64_t classes,
                                   std::int64_t first_label) {
  check_classes(classes, first_label);
  const std::string text = whole_text(path);
  CsvReader reader(text, path);
  LabelledTexts result{classes, {}, {}};
  std::vector<std::string> fields;
  std::size_t columns = 0;
  while (reader.next(fields)) {
    const bool first = columns == 0;
    if (first) columns = fields.size();
    if (columns < 2)
      fail_file(path, "line {}: a label and a text are expected, but one field came",
                reader.line());
    if (fields.size() != columns)
      fail_file(path, "line {}: {} fields are expected, as in the first record, but {} came",
                reader.line(), columns, fields.size());
    const std::string& label = fields[0];
    if (first && label.find_first_of("0123456789") == std::string::npos) continue;
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), number);
    const bool whole = error == std::errc() && end == label.data() + label.size();
    if (!whole || number < first_label || number >= first_label + classes)
      fail_file(path, "line {}: a label of {} to {} is expected, but \"{}\" came{}", reader.line(),
                first_label, first_label + classes - 1, shown(label),
                whole ? hint(number, classes, first_label) : "");
    std::string joined = std::move(fields[1]);
    for (std::size_t i = 2; i < fields.size(); ++i) joined += ' ' + fields[i];
    result.texts.push_back(std::move(joined));
    result.labels.push_back(static_cast<std::int32_t>(number - first_label));
  }
  return finished(path, std::move(result));
}

LabelledTextsPtr read_labelled_jsonl(const std::filesystem::path& path, std::int64_t classes,
                                     std::int64_t first_label) {
  using Json = nlohmann::json;
  check_classes(classes, first_label);
  const std::string text = whole_text(path);
  LabelledTexts result{classes, {}, {}};
  std::int64_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view one(text.data() + at, end - at);
    at = end + 1;
    ++line;
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json json;
    try {
      json = parse_json(one);
    } catch (const ValueError& e) {
      fail_file(path, "line {}: {}", line, e.what());
    }
    const auto field = [&](const char* key) -> const Json& {
      const auto found = json.is_object() ? json.find(key) : json.end();
      if (found == json.end())
        fail_file(path,
                  "line {}: an object with \"text\" and \"label\" is expected, but there is "
                  "no \"{}\"",
                  line, key);
      return *found;
    };
    const Json &words = field("text"), &label = field("label");
    if (!words.is_string())
      fail_file(path, "line {}: \"text\" must be a string, but is {}", line, words.type_name());
    // Integers only; unsigned values above int64 would become negative.
    const bool whole = label.is_number_integer() &&
                       !(label.is_number_unsigned() &&
                         label.get<std::uint64_t>() > static_cast<std::uint64_t>(classes));
    const std::int64_t number = whole ? label.get<std::int64_t>() : -1;
    if (number < first_label || number >= first_label + classes)
      fail_file(path, "line {}: a label of {} to {} is expected, but {} came{}", line, first_label,
                first_label + classes - 1, json_excerpt(label),
                whole ? hint(number, classes, first_label) : "");
    result.texts.push_back(words.get<std::string>());
    result.labels.push_back(static_cast<std::int32_t>(number - first_label));
  }
  return finished(path, std::move(result));
}

}  // namespace ebb::data
