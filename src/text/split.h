// How a piece of text is divided at the matches of a pattern.
#pragma once

#include "text/characters.h"
#include "text/json_field.h"
#include "text/pieces.h"

namespace ebb::text {

enum class Behavior : std::uint8_t {
  removed,               // matches disappear
  isolated,              // each match is a piece
  merged_with_previous,  // a match belongs to the text before it
  merged_with_next,      // or after it
  contiguous,            // neighbouring matches are one piece
};

Behavior read_behavior(const Field& field);

// Divides `piece` by pieces.spans, which cover it, and appends the parts to pieces.next.
void split(const Piece& piece, Behavior behavior, Pieces& pieces);

// Spans of a text in which every character with is_match(code) is a match by itself.
template <class IsMatch>
void find_characters(std::string_view text, IsMatch&& is_match, std::vector<Span>& spans) {
  spans.clear();
  std::size_t last = 0, at = 0;
  while (at < text.size()) {
    const Character c = character_at(text.data() + at);
    if (is_match(c.code)) {
      if (at != last) spans.push_back({last, at, false});
      spans.push_back({at, at + c.size, true});
      last = at + c.size;
    }
    at += c.size;
  }
  if (at != last) spans.push_back({last, at, false});
}

}  // namespace ebb::text
