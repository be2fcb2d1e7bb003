#include "workloads/text_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "data/file.h"
#include "data/gzip.h"
#include "ebb/data/sequences.h"
#include "text/byte_level.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> token_kinds{"bytes", "words", "uint16", "int32"};

// The first of these files that exists in the folder, plain or compressed.
std::optional<fs::path> first_existing(const fs::path& folder,
                                       std::initializer_list<const char*> candidates) {
  for (const char* candidate : candidates)
    for (const char* end : {"", ".gz"}) {
      const fs::path file = folder / (candidate + std::string(end));
      if (fs::exists(file)) return file;
    }
  return {};
}

bool holds_numbers(TokenKind kind) { return kind == TokenKind::uint16 || kind == TokenKind::int32; }

// Whether the first tokens of the file, read as this kind, are all below the vocabulary.
bool fits(const fs::path& file, TokenKind kind, std::int64_t vocabulary) {
  constexpr std::int64_t tried = 1 << 16;
  const data::File bytes(file);
  const std::int64_t each = kind == TokenKind::uint16 ? 2 : 4;
  if (bytes.size() == 0 || bytes.size() % each != 0) return false;
  std::vector<std::byte> head(static_cast<std::size_t>(std::min(bytes.size(), tried * each)));
  bytes.read(0, head);
  const auto width = static_cast<std::size_t>(each);
  for (std::size_t at = 0; at + width <= head.size(); at += width) {
    std::uint32_t token = 0;
    for (std::size_t b = width; b-- > 0;)
      token = token << 8 | std::to_integer<std::uint32_t>(head[at + b]);
    if (token >= static_cast<std::uint64_t>(vocabulary)) return false;
  }
  return true;
}

}  // namespace

std::string_view name(TokenKind kind) { return token_kinds[static_cast<std::size_t>(kind)]; }

std::vector<std::string> token_kind_names() { return {token_kinds.begin(), token_kinds.end()}; }

std::optional<TokenKind> token_kind(const Options& options, const fs::path& file) {
  const bool numbers = file.extension() == ".bin";
  if (!options.tokens) {
    if (numbers) return {};
    const fs::path text = data::without_gzip(file);
    const bool treebank =
        text.filename().string().starts_with("ptb.") && text.extension() == ".txt";
    return treebank ? TokenKind::words : TokenKind::bytes;
  }
  const auto found = std::find(token_kinds.begin(), token_kinds.end(), *options.tokens);
  if (found == token_kinds.end())
    throw ValueError(fmt::format("the option tokens is one of {}, but is \"{}\"",
                                 fmt::join(token_kinds, ", "), *options.tokens));
  const auto kind = static_cast<TokenKind>(found - token_kinds.begin());
  if (numbers != holds_numbers(kind) && kind != TokenKind::bytes)
    throw ValueError(fmt::format("{}: a {} file is read as {}, but the option tokens is {}",
                                 file.string(), numbers ? ".bin" : "text",
                                 numbers ? "uint16, int32 or bytes" : "bytes or words", *found));
  return kind;
}

data::TokenStream token_file(const Options& options, const fs::path& file, std::int64_t vocabulary,
                             TokenKind& kind) {
  const std::optional<TokenKind> said = token_kind(options, file);
  if (said) {
    kind = *said;
  } else if (data::File(file).size() % 2 != 0 || fits(file, TokenKind::int32, vocabulary)) {
    kind = TokenKind::int32;
  } else if (fits(file, TokenKind::uint16, vocabulary)) {
    kind = TokenKind::uint16;
  } else {
    throw ValueError(fmt::format(
        "{}: its first tokens are not all below the vocabulary of {}, neither as int32 nor as "
        "uint16; give the option vocabulary, or tokens for another width",
        file.string(), vocabulary));
  }
  return data::TokenStream::file(
      file, kind == TokenKind::uint16 ? data::TokenWidth::uint16 : data::TokenWidth::int32,
      vocabulary);
}

std::optional<data::NanoGptMeta> meta_beside(const fs::path& file) {
  const fs::path meta = file.parent_path() / "meta.pkl";
  if (!fs::exists(meta)) return {};
  return data::read_nanogpt_meta(meta);
}

TextFiles text_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path, {}};
  const auto train = first_existing(path, {"train.txt", "ptb.train.txt", "input.txt", "valid.txt",
                                           "ptb.valid.txt", "train.jsonl", "train.bin"});
  if (!train)
    throw FileError(
        fmt::format("{}: expected train.txt, ptb.train.txt, input.txt, valid.txt, train.jsonl or "
                    "train.bin in the folder",
                    path.string()));
  const auto test =
      train->extension() == ".bin" ? first_existing(path, {"test.bin", "val.bin", "valid.bin"})
      : data::is_json_lines(*train)
          ? first_existing(path, {"test.jsonl", "val.jsonl", "valid.jsonl"})
          : first_existing(path,
                           {"test.txt", "ptb.test.txt", "valid.txt", "val.txt", "ptb.valid.txt"});
  if (!test || fs::equivalent(*train, *test)) return {*train, {}};
  return {*train, *test};
}

namespace {

// The part that the files of all these tokenizers share.
std::string tokenizer_json(const nlohmann::ordered_json& normalizer,
                           const nlohmann::ordered_json& pre_tokenizer,
                           const nlohmann::ordered_json& decoder,
                           const nlohmann::ordered_json& model) {
  const nlohmann::ordered_json file{{"version", "1.0"},
                                    {"truncation", nullptr},
                                    {"padding", nullptr},
                                    {"added_tokens", nlohmann::ordered_json::array()},
                                    {"normalizer", normalizer},
                                    {"pre_tokenizer", pre_tokenizer},
                                    {"post_processor", nullptr},
                                    {"decoder", decoder},
                                    {"model", model}};
  return json_text(file, 1) + "\n";
}

// Without merges, byte-pair encoding gives each character its own token.
nlohmann::ordered_json characters_model(const nlohmann::ordered_json& vocabulary) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"vocab", vocabulary},
          {"merges", nlohmann::ordered_json::array()}};
}

}  // namespace

std::string byte_tokenizer_json() {
  const text::ByteAlphabet alphabet;
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    alphabet.append(std::string(1, static_cast<char>(byte)), character);
    vocabulary[character] = byte;
  }
  const nlohmann::ordered_json byte_level{{"type", "ByteLevel"},
                                          {"add_prefix_space", false},
                                          {"trim_offsets", true},
                                          {"use_regex", false}};
  return tokenizer_json(nullptr, byte_level, byte_level, characters_model(vocabulary));
}

std::string character_tokenizer_json(const std::vector<std::string>& characters) {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  for (std::size_t token = 0; token < characters.size(); ++token)
    vocabulary[characters[token]] = token;
  return tokenizer_json(nullptr, nullptr, {{"type", "Fuse"}}, characters_model(vocabulary));
}

// A WordPiece model whose tokens are whole words. A word that is not among them cannot be composed
// of others, because no token continues a word.
std::string word_tokenizer_json(const data::Vocabulary& words) {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  // Each word occurs once. A search among the earlier words would take minutes for 100,000 words.
  auto& entries = vocabulary.get_ref<nlohmann::ordered_json::object_t&>();
  for (std::int64_t token = 0; token < words.size(); ++token)
    entries.emplace_back(words.word(token), token);
  const std::string no_continuation = "\x01";  // white space splits words, so that none has it
  return tokenizer_json(
      {{"type", "Replace"}, {"pattern", {{"String", "\n"}}}, {"content", " <eos> "}},
      {{"type", "WhitespaceSplit"}},
      {{"type", "WordPiece"}, {"prefix", no_continuation}, {"cleanup", false}},
      {{"type", "WordPiece"},
       {"unk_token", "<unk>"},
       {"continuing_subword_prefix", no_continuation},
       {"max_input_chars_per_word", 1 << 16},
       {"vocab", vocabulary}});
}

}  // namespace ebb::workloads
