// A check of an option's text by the library's own parser.
#pragma once

#include <string>
#include <vector>

#include "cli/did_you_mean.h"
#include "cli/numbers.h"
#include "ebb/error.h"

namespace ebb::cli {

// The message of an error, with a long text that it quotes shortened.
inline std::string quoting(std::string message, const std::string& text) {
  const std::string brief = shortened(text);
  if (brief.size() >= text.size()) return message;
  for (std::size_t at = message.find(text); at != std::string::npos; at = message.find(text))
    message.replace(at, text.size(), brief);
  return message;
}

// A check for CLI11 that gives the library's own message.
template <class Parse>
auto accepted_by(const Parse& parse) {
  return [parse](const std::string& text) -> std::string {
    try {
      parse(text);
      return {};
    } catch (const Error& error) {
      return quoting(error.what(), text);
    }
  };
}

// The same for names; the message suggests the nearest name for a mistyped one.
template <class Parse, class Names>
auto accepted_by(const Parse& parse, const Names& names) {
  const std::vector<std::string> known(std::begin(names), std::end(names));
  return [parse, known](const std::string& text) -> std::string {
    try {
      parse(text);
      return {};
    } catch (const Error& error) {
      return quoting(error.what(), text) + did_you_mean(text, known);
    }
  };
}

// The names that the library's parsers accept.
inline std::vector<std::string> recompute_names() {
  return {"none", "marked", "blocks", "sqrt", "segment=all", "selective", "greedy", "auto"};
}
inline std::vector<std::string> precision_names() {
  return {"fp32", "fp16", "bf16", "pure-bf16", "split-bf16", "fp8"};
}

}  // namespace ebb::cli
