#include "text/split.h"

namespace ebb::text {

Behavior read_behavior(const Field& field) {
  const std::string& name = field.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  field.fail_expecting("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void split(const Piece& piece, Behavior behavior, Pieces& pieces) {
  const std::vector<Span>& spans = pieces.spans;
  switch (behavior) {
    case Behavior::removed:
      for (const Span& span : spans)
        if (!span.is_match) pieces.add(piece, span.begin, span.end);
      return;
    case Behavior::isolated:
      for (const Span& span : spans) pieces.add(piece, span.begin, span.end);
      return;
    case Behavior::contiguous:
      for (std::size_t i = 0; i < spans.size();) {
        std::size_t last = i;
        while (last + 1 < spans.size() && spans[last + 1].is_match == spans[i].is_match) ++last;
        pieces.add(piece, spans[i].begin, spans[last].end);
        i = last + 1;
      }
      return;
    // Of several adjacent matches, only the one next to the other text is joined to it.
    case Behavior::merged_with_previous:
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const bool joins = !spans[i].is_match && i + 1 < spans.size() && spans[i + 1].is_match;
        pieces.add(piece, spans[i].begin, spans[joins ? i + 1 : i].end);
        if (joins) ++i;
      }
      return;
    case Behavior::merged_with_next:
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const bool joins = spans[i].is_match && i + 1 < spans.size() && !spans[i + 1].is_match;
        pieces.add(piece, spans[i].begin, spans[joins ? i + 1 : i].end);
        if (joins) ++i;
      }
      return;
  }
}

}  // namespace ebb::text
