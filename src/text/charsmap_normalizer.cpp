// Precompiled: the table of replacements of a SentencePiece model. Its bytes, in base 64, are the
// size of a double-array trie (4 bytes, little-endian), the trie (units of 4 bytes), and the
// replacements, each with a zero byte at its end. The trie gives the offset of a replacement.
#include <fmt/core.h>
#include <unicode/brkiter.h>
#include <unicode/utext.h>

#include <array>
#include <optional>
#include <vector>

#include "core/utf8.h"
#include "ebb/error.h"
#include "text/characters.h"
#include "text/normalizer.h"

namespace ebb::text {
namespace {

std::string decode_base64(const Field& field) {
  const std::string& text = field.text();
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  std::size_t padding = 0;
  for (char c : text) {
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+') value = 62;
    if (c == '/') value = 63;
    if (c == '=') {
      ++padding;
      continue;
    }
    if (value < 0 || padding > 0) field.fail("not in base 64");
    bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xFFFFFF;
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xFF);
    }
  }
  if (text.size() % 4 != 0 || padding > 2) field.fail("not in base 64");
  return bytes;
}

class Charsmap {
 public:
  explicit Charsmap(const Field& field) {
    const std::string bytes = decode_base64(field);
    const auto word = [&](std::size_t at) {
      std::uint32_t value = 0;
      for (std::size_t b = 4; b-- > 0;)
        value = value << 8 | static_cast<unsigned char>(bytes[at + b]);
      return value;
    };
    if (bytes.size() < 4) field.fail(fmt::format("{} bytes are too few", bytes.size()));
    const std::size_t size = word(0);
    if (size > bytes.size() - 4 || size % 4 != 0 || size == 0)
      field.fail(fmt::format("a trie of {} bytes is not in {} bytes", size, bytes.size()));
    for (std::size_t at = 4; at < 4 + size; at += 4) units_.push_back(word(at));
    replacements_ = bytes.substr(4 + size);
    if (!is_utf8(replacements_)) field.fail("the replacements are not UTF-8");
    for (std::size_t c = 1; c < ascii_.size(); ++c) {
      const auto byte = static_cast<char>(c);
      ascii_[c] = look_up(std::string_view(&byte, 1));
    }
  }

  Charsmap(const Charsmap&) = delete;  // ascii_ points into replacements_
  Charsmap& operator=(const Charsmap&) = delete;

  // The replacement of the shortest entry that the text begins with, if there is one.
  std::optional<std::string_view> find(std::string_view text) const {
    if (text.size() == 1) return ascii_[static_cast<unsigned char>(text[0])];
    return look_up(text);
  }

 private:
  std::optional<std::string_view> look_up(std::string_view text) const {
    std::size_t at = 0;
    const auto step = [&](std::uint32_t unit) {  // to the children of a node
      at ^= static_cast<std::size_t>(unit >> 10) << ((unit & 0x200) >> 6);
    };
    step(units_[0]);
    for (char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) return std::nullopt;
      at ^= byte;
      if (at >= units_.size()) return std::nullopt;
      const std::uint32_t unit = units_[at];
      if ((unit & 0x800000FF) != byte) return std::nullopt;
      step(unit);
      if ((unit & 0x100) == 0) continue;
      if (at >= units_.size()) fail();
      return replacement(units_[at] & 0x7FFFFFFF);
    }
    return std::nullopt;
  }

  std::string_view replacement(std::size_t at) const {
    if (at >= replacements_.size() ||
        (static_cast<unsigned char>(replacements_[at]) & 0xC0) == 0x80)
      fail();
    const std::string_view rest = std::string_view(replacements_).substr(at);
    return rest.substr(0, rest.find('\0'));
  }

  [[noreturn]] static void fail() {
    throw ValueError("normalizer: the trie of precompiled_charsmap leads outside of its data");
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
  std::array<std::optional<std::string_view>, 128> ascii_;
};

struct CloseUtf8 {
  void operator()(UText* text) const { utext_close(text); }
};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(const Field& field) : map_(field["precompiled_charsmap"]) {
    field.allow_only({"type", "precompiled_charsmap"});
    UErrorCode status = U_ZERO_ERROR;
    graphemes_.reset(icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
    if (U_FAILURE(status))
      throw Error(fmt::format("ICU has no data of characters: {}", u_errorName(status)));
  }

  // An ASCII character before another one is a grapheme by itself, unless they end a line. Other
  // stretches are divided by ICU, which is much slower.
  void apply(std::string& text) const override {
    std::string result;
    result.reserve(text.size() + 16);
    std::unique_ptr<icu::BreakIterator> graphemes;
    const std::string_view all = text;
    const auto ends_before = [&](std::size_t at) {  // whether a grapheme is certain to end there
      return at >= all.size() || (is_plain(all[at - 1]) && is_plain(all[at]));
    };
    for (std::size_t at = 0; at < all.size();) {
      std::size_t end = at + 1;
      while (!ends_before(end)) ++end;
      if (end == at + 1) {
        replace_characters(all.substr(at, 1), result);
      } else {
        if (!graphemes) graphemes.reset(graphemes_->clone());
        replace_graphemes(all.substr(at, end - at), *graphemes, result);
      }
      at = end;
      limit_growth("Precompiled", text.size(), result.size());
    }
    text = std::move(result);
  }

 private:
  static bool is_plain(char c) { return static_cast<unsigned char>(c) < 0x80 && c != '\r'; }

  void replace_graphemes(std::string_view text, icu::BreakIterator& graphemes,
                         std::string& result) const {
    UErrorCode status = U_ZERO_ERROR;
    const std::unique_ptr<UText, CloseUtf8> utf8(
        utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status));
    graphemes.setText(utf8.get(), status);
    if (U_FAILURE(status))
      throw ValueError(fmt::format("ICU cannot divide a text: {}", u_errorName(status)));
    std::int32_t begin = graphemes.first();
    for (std::int32_t end = graphemes.next(); end != icu::BreakIterator::DONE;
         begin = end, end = graphemes.next()) {
      const std::string_view grapheme =
          text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      const auto whole = grapheme.size() < longest_grapheme ? map_.find(grapheme) : std::nullopt;
      if (whole)
        result += *whole;
      else
        replace_characters(grapheme, result);
    }
  }

  void replace_characters(std::string_view text, std::string& result) const {
    each_character(text, [&](char32_t, std::string_view character) {
      result += map_.find(character).value_or(character);
    });
  }

  static constexpr std::size_t longest_grapheme = 6;  // bytes; from here on, by characters
  Charsmap map_;
  std::unique_ptr<const icu::BreakIterator> graphemes_;  // cloned for each use
};

}  // namespace

std::unique_ptr<const Normalizer> make_charsmap_normalizer(const Field& field) {
  if (field.type() != "Precompiled") return nullptr;
  return std::make_unique<Precompiled>(field);
}

}  // namespace ebb::text
