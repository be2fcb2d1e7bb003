#include "text/byte_level.h"

#include <algorithm>

#include "core/utf8.h"

namespace ebb::text {
namespace {

bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  int other = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = is_printable(byte) ? byte : other++;
    bytes_[static_cast<std::size_t>(character)] = byte;
    std::string utf8;
    append_utf8(utf8, static_cast<char32_t>(character));
    Written& written = written_[static_cast<std::size_t>(byte)];
    std::copy_n(utf8.data(), utf8.size(), written.bytes);
    written.size = utf8.size();
  }
}

}  // namespace ebb::text
