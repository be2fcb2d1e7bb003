// The pattern that a pre-tokenizer splits at, or that Replace replaces: a string or a regular
// expression.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/fast_scanner.h"
#include "text/json_field.h"

namespace ebb::text {

// Bytes [begin, end) of a text, and whether the pattern matched them.
struct Span {
  std::size_t begin, end;
  bool is_match;
};

class Pattern {
 public:
  // {"String": ...} or {"Regex": ...}
  static Pattern read(const Field& field);
  static Pattern literal(std::string text);

  // All matches from the left, and the text between them: together the whole text.
  void find(std::string_view text, std::vector<Span>& spans) const;

  // A fast equivalent, if there is one. Its matches cover any text.
  Scanner scanner() const { return scanner_; }

 private:
  class Regex;
  Pattern() = default;
  void find_literal(std::string_view text, std::vector<Span>& spans) const;

  std::string literal_;
  std::shared_ptr<const Regex> regex_;  // null for a string
  Scanner scanner_ = nullptr;
};

}  // namespace ebb::text
