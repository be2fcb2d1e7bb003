// Pre-tokenizers that look at one character at a time.
#include "text/pre_tokenizer.h"
#include "text/split.h"

namespace ebb::text {
namespace {

// Splits at every character of a class.
template <class IsMatch>
class SplitAt : public PreTokenizer {
 public:
  SplitAt(IsMatch is_match, Behavior behavior)
      : is_match_(std::move(is_match)), behavior_(behavior) {}
  void apply(Pieces& pieces) const override {
    pieces.each([&](const Piece& piece) {
      find_characters(piece.text, is_match_, pieces.spans);
      split(piece, behavior_, pieces);
    });
  }

 private:
  IsMatch is_match_;
  Behavior behavior_;
};

template <class IsMatch>
std::unique_ptr<const PreTokenizer> split_at(IsMatch is_match, Behavior behavior) {
  return std::make_unique<SplitAt<IsMatch>>(std::move(is_match), behavior);
}

// Words (\w+) and runs of characters that are neither words nor spaces.
class Whitespace : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    enum class Run : std::uint8_t { space, word, other };
    const auto run_of = [](char32_t c) {
      return is_word(c) ? Run::word : is_space(c) ? Run::space : Run::other;
    };
    pieces.each([&](const Piece& piece) {
      std::size_t begin = 0;
      Run run = Run::space;
      for (std::size_t at = 0; at < piece.text.size();) {
        const Character c = character_at(piece.text.data() + at);
        if (run_of(c.code) != run) {
          if (run != Run::space) pieces.add(piece, begin, at);
          begin = at;
          run = run_of(c.code);
        }
        at += c.size;
      }
      if (run != Run::space) pieces.add(piece, begin, piece.text.size());
    });
  }
};

// Spaces are removed, and every punctuation character is a word.
class Bert : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    pieces.each([&](const Piece& piece) {
      std::size_t begin = 0;
      for (std::size_t at = 0; at < piece.text.size();) {
        const Character c = character_at(piece.text.data() + at);
        const bool is_mark = is_punctuation(c.code);
        if (is_mark || is_space(c.code)) {
          pieces.add(piece, begin, at);
          begin = at + c.size;
          if (is_mark) pieces.add(piece, at, begin);
        }
        at += c.size;
      }
      pieces.add(piece, begin, piece.text.size());
    });
  }
};

char32_t one_character(const Field& field) {
  const std::string& text = field.text();
  if (text.empty() || character_at(text.data()).size != text.size())
    field.fail_expecting("one character");
  return character_at(text.data()).code;
}

}  // namespace

std::unique_ptr<const PreTokenizer> make_simple_pre_tokenizer(const Field& field) {
  const std::string& type = field.type();
  if (type == "Whitespace") {
    field.allow_only({"type"});
    return std::make_unique<Whitespace>();
  }
  if (type == "WhitespaceSplit") {
    field.allow_only({"type"});
    return split_at(is_space, Behavior::removed);
  }
  if (type == "BertPreTokenizer") {
    field.allow_only({"type"});
    return std::make_unique<Bert>();
  }
  if (type == "Digits") {
    field.allow_only({"type", "individual_digits"});
    return split_at(is_number, field.flag("individual_digits", false) ? Behavior::isolated
                                                                      : Behavior::contiguous);
  }
  if (type == "Punctuation") {
    field.allow_only({"type", "behavior"});
    const auto behavior = field.find("behavior");
    return split_at(is_punctuation, behavior ? read_behavior(*behavior) : Behavior::isolated);
  }
  if (type == "CharDelimiterSplit") {
    field.allow_only({"type", "delimiter"});
    const char32_t delimiter = one_character(field["delimiter"]);
    return split_at([=](char32_t c) { return c == delimiter; }, Behavior::removed);
  }
  return nullptr;
}

}  // namespace ebb::text
