// ByteLevel and ByteFallback.
#include <optional>

#include "core/utf8.h"
#include "text/byte_level.h"
#include "text/characters.h"
#include "text/decoder.h"

namespace ebb::text {
namespace {

constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

// Replaces each longest beginning of a truncated character by one U+FFFD, as the Unicode Standard
// recommends.
std::string with_replacements(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = first_utf8_step(bytes);
    text += step.is_valid ? bytes.substr(0, step.size) : replacement_character;
    bytes.remove_prefix(step.size);
  }
  return text;
}

class ByteLevelDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const std::size_t before = bytes.size();
      bool is_bytes = true;  // a token with other characters stays as it is
      each_character(token, [&](char32_t c, std::string_view) {
        const auto byte = alphabet_.byte(c);
        if (byte)
          bytes += *byte;
        else
          is_bytes = false;
      });
      if (!is_bytes) bytes.replace(before, std::string::npos, token);
    }
    tokens.assign(1, with_replacements(bytes));
  }

 private:
  ByteAlphabet alphabet_;
};

class ByteFallback : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto finish = [&] {
      if (bytes.empty()) return;
      if (is_utf8(bytes))
        result.push_back(bytes);
      else
        result.insert(result.end(), bytes.size(), std::string(replacement_character));
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes += *byte;
        continue;
      }
      finish();
      result.push_back(std::move(token));
    }
    finish();
    tokens = std::move(result);
  }

 private:
  // The byte of a token such as "<0x0A>".
  static std::optional<char> byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (char c : {token[3], token[4]}) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    return static_cast<char>(value);
  }
};

}  // namespace

std::unique_ptr<const Decoder> make_byte_decoder(const Field& field) {
  const std::string& type = field.type();
  if (type == "ByteLevel") {  // its settings concern encoding
    field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "ByteFallback") {
    field.allow_only({"type"});
    return std::make_unique<ByteFallback>();
  }
  return nullptr;
}

}  // namespace ebb::text
