#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "data/file.h"
#include "data/gzip.h"
#include "ebb/data/sequences.h"

namespace ebb::data {
namespace {

using Json = nlohmann::json;

// The string under `key`, or null where the key is not there.
const std::string* text_in(const Json& json, const char* key, const std::filesystem::path& path,
                           std::int64_t line) {
  const auto found = json.find(key);
  if (found == json.end()) return nullptr;
  if (!found->is_string())
    fail_file(path, "line {}: \"{}\" must be a string, but is {}", line, key, found->type_name());
  return &found->get_ref<const std::string&>();
}

Document document_of(const Json& json, const std::filesystem::path& path, std::int64_t line) {
  constexpr const char* wanted =
      R"(an object with "text", or with "prompt" and "answer", is expected)";
  if (!json.is_object())
    fail_file(path, "line {}: {}, but {} came", line, wanted, json_excerpt(json));
  const std::string *text = text_in(json, "text", path, line),
                    *prompt = text_in(json, "prompt", path, line),
                    *answer = text_in(json, "answer", path, line);
  if (text && (prompt || answer))
    fail_file(path, "line {}: {}, but \"text\" came with \"{}\"", line, wanted,
              prompt ? "prompt" : "answer");
  if (text) return {"", *text, false};
  if (!prompt || !answer)
    fail_file(path, "line {}: {}, but there is no \"{}\"", line, wanted,
              prompt   ? "answer"
              : answer ? "prompt"
                       : "text");
  return {*prompt, *answer, true};
}

}  // namespace

bool is_json_lines(const std::filesystem::path& path) {
  return without_gzip(path).extension() == ".jsonl";
}

std::vector<Document> read_documents(const std::filesystem::path& path) {
  const std::string all = whole_text(path);
  std::vector<Document> documents;
  std::int64_t line = 0;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view one(all.data() + at, end - at);
    at = end + 1, ++line;
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json json;
    try {
      json = parse_json(one);
    } catch (const ValueError& error) {
      fail_file(path, "line {}: {}", line, error.what());
    }
    documents.push_back(document_of(json, path, line));
  }
  if (documents.empty()) fail_file(path, "texts are expected, one a line, but the file has none");
  return documents;
}

}  // namespace ebb::data
