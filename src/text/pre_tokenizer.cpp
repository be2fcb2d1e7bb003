// Split, ByteLevel, Metaspace and sequences.
#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/metaspace.h"
#include "text/split.h"

namespace ebb::text {
namespace {

void scan(const Piece& piece, Scanner scanner, Pieces& pieces) {
  for (std::size_t at = 0; at < piece.text.size();) {
    const std::size_t size = scanner(piece.text.substr(at));
    pieces.add(piece, at, at + size);
    at += size;
  }
}

class Split : public PreTokenizer {
 public:
  explicit Split(const Field& field)
      : pattern_(Pattern::read(field["pattern"])),
        behavior_(read_behavior(field["behavior"])),
        invert_(field.flag("invert", false)) {
    field.allow_only({"type", "pattern", "behavior", "invert"});
  }

  void apply(Pieces& pieces) const override {
    pieces.each([&](const Piece& piece) {
      if (pattern_.scanner() && behavior_ == Behavior::isolated)
        return scan(piece, pattern_.scanner(), pieces);
      pattern_.find(piece.text, pieces.spans);
      if (invert_)
        for (Span& span : pieces.spans) span.is_match = !span.is_match;
      split(piece, behavior_, pieces);
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(const Field& field)
      : add_space_(field.flag("add_prefix_space", true)), splits_(field.flag("use_regex", true)) {
    field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    (void)field.flag("trim_offsets", true);  // affects only offsets, which ebb does not return
  }

  void apply(Pieces& pieces) const override {
    pieces.each([&](Piece piece) {
      if (add_space_ && !piece.text.starts_with(' '))
        piece.text = pieces.store.joined(" ", piece.text);
      if (splits_)
        scan(piece, scan_gpt2, pieces);
      else
        pieces.add(piece, 0, piece.text.size());
    });
  }

 private:
  bool add_space_, splits_;
};

// Used after a ByteLevel that is not the last step.
class WriteBytes : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    std::string written;
    pieces.each([&](Piece piece) {
      written.clear();
      alphabet_.append(piece.text, written);
      piece.text = pieces.store.joined(written, {});
      pieces.add(piece, 0, piece.text.size());
    });
  }

 private:
  ByteAlphabet alphabet_;
};

class MetaspaceSplit : public PreTokenizer {
 public:
  explicit MetaspaceSplit(const Field& field) : settings_(read_metaspace(field)) {}

  void apply(Pieces& pieces) const override {
    const Pattern pattern = Pattern::literal(settings_.replacement);
    pieces.each([&](Piece piece) {
      piece.text = marked(piece, pieces.store);
      if (!settings_.split) return pieces.add(piece, 0, piece.text.size());
      pattern.find(piece.text, pieces.spans);
      split(piece, Behavior::merged_with_next, pieces);
    });
  }

 private:
  // The text with the mark instead of spaces and, if the settings say so, before the text.
  std::string_view marked(const Piece& piece, TextStore& store) const {
    const std::string& mark = settings_.replacement;
    const bool prepend = (settings_.prepend == PrependScheme::always ||
                          (settings_.prepend == PrependScheme::first && piece.at_start)) &&
                         !piece.text.starts_with(' ') && !piece.text.starts_with(mark);
    const auto spaces =
        static_cast<std::size_t>(std::count(piece.text.begin(), piece.text.end(), ' '));
    const std::size_t size =
        piece.text.size() + spaces * (mark.size() - 1) + (prepend ? mark.size() : 0);
    char* const begin = store.take(size);
    char* to = prepend ? std::copy(mark.begin(), mark.end(), begin) : begin;
    for (char c : piece.text)
      if (c == ' ')
        to = std::copy(mark.begin(), mark.end(), to);
      else
        *to++ = c;
    return {begin, size};
  }

  MetaspaceSettings settings_;
};

void add_steps(const Field& field, PreTokenizers& made) {
  if (made.gives_bytes) {
    made.steps.push_back(std::make_unique<WriteBytes>());
    made.gives_bytes = false;
  }
  const std::string& type = field.type();
  if (type == "Sequence") {
    field.allow_only({"type", "pretokenizers"});
    for (const Field& item : field["pretokenizers"].items()) add_steps(item, made);
  } else if (type == "Split") {
    made.steps.push_back(std::make_unique<Split>(field));
  } else if (type == "ByteLevel") {
    made.steps.push_back(std::make_unique<ByteLevel>(field));
    made.gives_bytes = true;
  } else if (type == "Metaspace") {
    made.steps.push_back(std::make_unique<MetaspaceSplit>(field));
  } else if (auto simple = make_simple_pre_tokenizer(field)) {
    made.steps.push_back(std::move(simple));
  } else {
    field["type"].fail_expecting(
        "Sequence, Split, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer, "
        "Digits, Punctuation or CharDelimiterSplit");
  }
}

}  // namespace

PreTokenizers make_pre_tokenizers(const Field& field) {
  PreTokenizers made;
  add_steps(field, made);
  return made;
}

}  // namespace ebb::text
