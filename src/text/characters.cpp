#include "text/characters.h"

#include <unicode/uchar.h>

namespace ebb::text {
namespace {

bool has_category(char32_t c, std::uint32_t mask) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & mask) != 0;
}

}  // namespace

namespace detail {

Kind kind_beyond_ascii(char32_t c) {
  const std::uint32_t category = U_GET_GC_MASK(static_cast<UChar32>(c));
  if (category & U_GC_L_MASK) return Kind::letter;
  if (category & U_GC_N_MASK) return Kind::number;
  return (category & U_GC_Z_MASK) != 0 || c == 0x85 ? Kind::space : Kind::other;
}

}  // namespace detail

bool is_word(char32_t c) {
  return c < 128 ? kind_of(c) == Kind::letter || kind_of(c) == Kind::number || c == '_'
                 : u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ALPHABETIC) ||
                       u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_JOIN_CONTROL) ||
                       has_category(c, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK);
}

bool is_punctuation(char32_t c) {
  return c < 128 ? kind_of(c) == Kind::other && c > ' ' && c != 0x7F : has_category(c, U_GC_P_MASK);
}

bool is_mark(char32_t c) { return c >= 128 && has_category(c, U_GC_M_MASK); }
bool is_nonspacing_mark(char32_t c) { return c >= 128 && has_category(c, U_GC_MN_MASK); }
bool is_control(char32_t c) {
  return c < 128 ? c < ' ' || c == 0x7F : has_category(c, U_GC_C_MASK);
}

Utf8Step first_utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const int first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  // The bounds of the second byte exclude overlong forms, surrogates, and code points beyond
  // U+10FFFF.
  const int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return {1, false};
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (std::size_t i = 2; i < size; ++i)
    if ((byte(i) & 0xC0) != 0x80) return {i, false};
  return {size, true};
}

}  // namespace ebb::text
