#include "text/fast_scanner.h"

#include <cstdint>

#include "text/characters.h"

namespace ebb::text {
namespace {

constexpr std::string_view gpt2_regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char32_t long_s = 0x17F;  // "ſ", which is an "s" where case is ignored

enum class Case : std::uint8_t { matters, ignored };

// The end of the run of characters of one kind that begins at `at`.
template <Kind kind>
std::size_t end_of(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character c = character_at(text.data() + at);
    if (kind_of(c.code) != kind) break;
    at += c.size;
  }
  return at;
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at the begin of a text that begins with '; 0: none.
template <Case letter_case>
std::size_t contraction(std::string_view text) {
  const auto letter = [&](std::size_t i) {
    if (i >= text.size()) return '\0';
    const char c = text[i];
    return letter_case == Case::ignored && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  if (letter_case == Case::ignored && text.size() >= 3 &&
      static_cast<unsigned char>(first) >= 0x80 && character_at(text.data() + 1).code == long_s)
    return 3;
  return 0;
}

// \s+(?!\S)|\s+: spaces, without the last one if a word follows.
std::size_t scan_spaces(std::string_view text) {
  const std::size_t end = end_of<Kind::space>(text, 0);
  if (end == text.size()) return end;
  const std::size_t last = last_character(text.substr(0, end)).size;
  return end > last ? end - last : end;
}

// The kind of the character at `at`; space at the end of the text.
Kind kind_at(std::string_view text, std::size_t at) {
  return at < text.size() ? kind_of(character_at(text.data() + at).code) : Kind::space;
}

template <std::size_t digits>
std::size_t scan_llama3(std::string_view text) {
  const Character first = character_at(text.data());
  if (first.code == '\'')
    if (const std::size_t size = contraction<Case::ignored>(text)) return size;
  const Kind kind = kind_of(first.code);
  if (kind == Kind::letter) return end_of<Kind::letter>(text, first.size);
  if (kind == Kind::number) {
    std::size_t at = first.size;
    for (std::size_t i = 1; i < digits && kind_at(text, at) == Kind::number; ++i)
      at += character_at(text.data() + at).size;
    return at;
  }
  const bool is_line_end = first.code == '\n' || first.code == '\r';
  if (!is_line_end && kind_at(text, first.size) == Kind::letter)
    return end_of<Kind::letter>(text, first.size);
  if (kind == Kind::other || (first.code == ' ' && kind_at(text, 1) == Kind::other)) {
    std::size_t at = end_of<Kind::other>(text, first.size);
    while (at < text.size() && (text[at] == '\n' || text[at] == '\r')) ++at;
    return at;
  }
  // \s*[\r\n]+ ends after the last line end among the spaces.
  const std::string_view spaces = text.substr(0, end_of<Kind::space>(text, 0));
  const std::size_t line_end = spaces.find_last_of("\r\n");
  return line_end != std::string_view::npos ? line_end + 1 : scan_spaces(text);
}

}  // namespace

std::size_t scan_gpt2(std::string_view text) {
  if (text[0] == '\'')
    if (const std::size_t size = contraction<Case::matters>(text)) return size;
  const Character first = character_at(text.data());
  const bool after_space = first.code == ' ' && kind_at(text, 1) != Kind::space;
  switch (after_space ? kind_at(text, 1) : kind_of(first.code)) {
    case Kind::letter:
      return end_of<Kind::letter>(text, first.size);
    case Kind::number:
      return end_of<Kind::number>(text, first.size);
    case Kind::other:
      return end_of<Kind::other>(text, first.size);
    case Kind::space:
      break;
  }
  return scan_spaces(text);
}

Scanner find_scanner(std::string_view regex) {
  if (regex == gpt2_regex) return scan_gpt2;
  if (regex == llama3_regex) return scan_llama3<3>;
  if (regex == qwen_regex) return scan_llama3<1>;
  return nullptr;
}

}  // namespace ebb::text
