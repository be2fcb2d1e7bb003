// Encodes and decodes many strings with one tokenizer, for tools/compare_tokenizers.py.
//
//   encode_strings TOKENIZER.json STRINGS RESULTS
//
// STRINGS: for each string its size (uint32) and its bytes. RESULTS: for each string the ids
// without special tokens, the ids with them (each a uint32 count and int32 values), and the text
// decoded from the latter without special tokens (size and bytes); all little-endian. Prints one
// JSON object: the processor seconds that a first pass of encoding without special tokens took, and
// the bytes.
#include <fmt/core.h>

#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <vector>

#include "ebb/text/tokenizer.h"

namespace {

using ebb::text::Specials;
using ebb::text::TokenId;

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Items>
void append(std::string& out, const Items& items) {
  const auto count = static_cast<std::uint32_t>(items.size());
  out.append(reinterpret_cast<const char*>(&count), sizeof count);
  out.append(reinterpret_cast<const char*>(items.data()), count * sizeof items[0]);
}

int run(const char* tokenizer_path, const char* strings_path, const char* results_path) {
  const auto tokenizer = ebb::text::Tokenizer::load(tokenizer_path);
  const std::string bytes = read(strings_path);
  std::vector<std::string_view> strings;
  std::size_t total = 0;
  for (std::size_t at = 0; at + 4 <= bytes.size();) {
    std::uint32_t size;
    std::memcpy(&size, bytes.data() + at, 4);
    strings.push_back(std::string_view(bytes).substr(at + 4, size));
    total += size;
    at += 4 + size;
  }
  const std::clock_t start = std::clock();  // of this process: a busy machine does not count
  std::vector<std::vector<TokenId>> plain;
  plain.reserve(strings.size());
  for (std::string_view text : strings) plain.push_back(tokenizer.encode(text));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::string out;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const std::vector<TokenId> special = tokenizer.encode(strings[i], Specials::with);
    append(out, plain[i]);
    append(out, special);
    append(out, tokenizer.decode(special));
  }
  std::ofstream(results_path, std::ios::binary) << out;
  fmt::print("{{\"seconds\": {}, \"bytes\": {}}}\n", seconds, total);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    fmt::print(stderr, "usage: encode_strings TOKENIZER.json STRINGS RESULTS\n");
    return 2;
  }
  try {
    return run(arguments[1], arguments[2], arguments[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "encode_strings: {}\n", error.what());
    return 1;
  }
}
