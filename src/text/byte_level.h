// The alphabet of byte-level tokenizers: each byte is one printable character, itself where it is
// printable, and a character from U+0100 on otherwise.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace ebb::text {

class ByteAlphabet {
 public:
  ByteAlphabet();

  void append(std::string_view bytes, std::string& characters) const {
    for (char c : bytes) {
      const Written& written = written_[static_cast<unsigned char>(c)];
      characters.append(written.bytes, written.size);
    }
  }

  // The byte that a character stands for.
  std::optional<char> byte(char32_t character) const {
    if (character >= bytes_.size() || bytes_[character] < 0) return std::nullopt;
    return static_cast<char>(bytes_[character]);
  }

 private:
  struct Written {  // a character in UTF-8
    char bytes[2];
    std::size_t size;
  };
  std::array<Written, 256> written_;
  std::array<int, 256 + 68> bytes_;  // by character; -1: none. 68 bytes are not printable
};

}  // namespace ebb::text
