#include "text/post_processor.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "text/model.h"

namespace ebb::text {
namespace {

// ["[CLS]", 101]
TokenId read_token(const Field& field) {
  const auto items = field.items();
  if (items.size() != 2) field.fail_expecting("a token and its id");
  (void)items[0].text();
  return static_cast<TokenId>(items[1].integer(0, highest_id));
}

SpecialTokens read_pair(const Field& field) {
  return {{read_token(field["cls"])}, {read_token(field["sep"])}};
}

// The ids that a special token of a template stands for.
std::vector<TokenId> read_ids(const Field& tokens, const Field& name) {
  const auto found = tokens.find(name.text().c_str());
  if (!found) name.fail_expecting(fmt::format("a member of {}", tokens.place()));
  std::vector<TokenId> ids;
  for (const Field& id : (*found)["ids"].items())
    ids.push_back(static_cast<TokenId>(id.integer(0, highest_id)));
  return ids;
}

// Only the template of single texts is read; ebb encodes no pairs.
SpecialTokens read_template(const Field& field) {
  field.allow_only({"type", "single", "pair", "special_tokens"});
  SpecialTokens result;
  bool has_text = false;
  for (const Field& item : field["single"].items()) {
    item.allow_only({"SpecialToken", "Sequence"});
    if (const auto sequence = item.find("Sequence")) {
      if (const Field id = (*sequence)["id"]; id.text() != "A") id.fail_expecting("\"A\"");
      if (has_text) sequence->fail("the text may come only once");
      has_text = true;
      continue;
    }
    const auto ids = read_ids(field["special_tokens"], item["SpecialToken"]["id"]);
    auto& list = has_text ? result.after : result.before;
    list.insert(list.end(), ids.begin(), ids.end());
  }
  if (!has_text) field["single"].fail("the text {\"Sequence\": {\"id\": \"A\"}} is missing");
  return result;
}

}  // namespace

SpecialTokens read_post_processor(const Field& field) {
  const std::string& type = field.type();
  if (type == "TemplateProcessing") return read_template(field);
  if (type == "BertProcessing") {
    field.allow_only({"type", "sep", "cls"});
    return read_pair(field);
  }
  if (type == "RobertaProcessing") {
    // The other two affect only offsets into the text, which ebb does not return.
    field.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    return read_pair(field);
  }
  if (type == "ByteLevel") {  // affects only offsets into the text
    field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type == "Sequence") {
    field.allow_only({"type", "processors"});
    SpecialTokens result;
    for (const Field& item : field["processors"].items()) {
      const SpecialTokens next = read_post_processor(item);  // added around the existing tokens
      result.before.insert(result.before.begin(), next.before.begin(), next.before.end());
      result.after.insert(result.after.end(), next.after.begin(), next.after.end());
    }
    return result;
  }
  field["type"].fail_expecting(
      "Sequence, TemplateProcessing, BertProcessing, RobertaProcessing or ByteLevel");
}

}  // namespace ebb::text
