// Characters of UTF-8 text and their Unicode properties. All text in this room is valid UTF-8:
// Tokenizer checks what comes from outside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ebb::text {

struct Character {
  char32_t code;
  std::size_t size;  // bytes
};

// The character at `at`, in valid UTF-8.
inline Character character_at(const char* at) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// The last character of `text`, which is not empty.
inline Character last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return character_at(text.data() + at);
}

template <class Take>
void each_character(std::string_view text, Take&& take) {
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.data() + at);
    take(c.code, text.substr(at, c.size));
    at += c.size;
  }
}

// The classes that the patterns of pre-tokenizers tell apart: \p{L}, \p{N}, \s and the rest.
enum class Kind : std::uint8_t { other, letter, number, space };

namespace detail {
constexpr Kind ascii_kind(int c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Kind::letter;
  if (c >= '0' && c <= '9') return Kind::number;
  return c == ' ' || (c >= '\t' && c <= '\r') ? Kind::space : Kind::other;
}
constexpr std::array<Kind, 128> make_ascii_kinds() {
  std::array<Kind, 128> kinds{};
  for (int c = 0; c < 128; ++c) kinds[static_cast<std::size_t>(c)] = ascii_kind(c);
  return kinds;
}
inline constexpr std::array<Kind, 128> ascii_kinds = make_ascii_kinds();
Kind kind_beyond_ascii(char32_t c);
}  // namespace detail

inline Kind kind_of(char32_t c) {
  return c < 128 ? detail::ascii_kinds[c] : detail::kind_beyond_ascii(c);
}

inline bool is_space(char32_t c) { return kind_of(c) == Kind::space; }    // White_Space
inline bool is_number(char32_t c) { return kind_of(c) == Kind::number; }  // Nd, Nl, No
bool is_word(char32_t c);             // \w: alphabetic, marks, digits, connectors, joiners
bool is_punctuation(char32_t c);      // category P, and all ASCII symbols
bool is_mark(char32_t c);             // Mn, Mc, Me
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_control(char32_t c);          // category C

// The first bytes of a text that is not empty: a valid character, or bytes that cannot be one. For
// a truncated character, these are its longest valid beginning (the Unicode Standard's "maximal
// subpart").
struct Utf8Step {
  std::size_t size;
  bool is_valid;
};
Utf8Step first_utf8_step(std::string_view text);

inline bool is_ascii(std::string_view text) {
  unsigned char seen = 0;
  for (char c : text) seen |= static_cast<unsigned char>(c);
  return seen < 0x80;
}

}  // namespace ebb::text
