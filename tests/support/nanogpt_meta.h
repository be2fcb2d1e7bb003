// meta.pkl as nanoGPT's prepare.py writes it for a text of the characters '\n', 'a' and 'é'.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

namespace ebb::test {

inline std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

// pickle.dumps({'vocab_size': 3, 'itos': {0: '\n', 1: 'a', 2: 'é'},
//               'stoi': {'\n': 0, 'a': 1, 'é': 2}}, protocol) of CPython 3.11. The keys of stoi are
// references to the values of itos.
inline std::string nanogpt_meta(int protocol) {
  if (protocol == 2)
    return from_hex(
        "80027d710028580a000000766f6361625f73697a6571014b03580400000069746f7371027d710328"
        "4b0058010000000a71044b0158010000006171054b025802000000c3a9710675580400000073746f"
        "6971077d71082868044b0068054b0168064b0275752e");
  return from_hex(
      "80049549000000000000007d94288c0a766f6361625f73697a65944b038c0469746f73947d94284b"
      "008c010a944b018c0161944b028c02c3a994758c0473746f69947d942868044b0068054b0168064b"
      "0275752e");  // 4, Python's default
}

}  // namespace ebb::test
