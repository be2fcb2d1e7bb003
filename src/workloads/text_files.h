// How the tokens of text files are read, and the tokenizers that turn them back into text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/nanogpt_meta.h"
#include "ebb/data/text.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

enum class TokenKind : std::uint8_t { bytes, words, uint16, int32 };
std::string_view name(TokenKind kind);
std::vector<std::string> token_kind_names();

// The kind given by Options::tokens, or else by the file's name: .bin files hold numbers, ptb.*.txt
// (the Penn Treebank) holds words, and any other text is read as bytes. The rule is the same for a
// file that is named and for one that is found in a folder. An error if the option and the name
// contradict each other. No value: numbers whose width must be found from the file's content.
std::optional<TokenKind> token_kind(const Options& options, const std::filesystem::path& file);

// Tokens in a .bin file. If Options::tokens gives no width, the first tokens decide: int32 if all
// are below the vocabulary when read as int32, otherwise uint16 if they are so when read as uint16.
// `kind` is set to the width used.
data::TokenStream token_file(const Options& options, const std::filesystem::path& file,
                             std::int64_t vocabulary, TokenKind& kind);

// The contents of nanoGPT's meta.pkl in the folder of a .bin file; nothing if there is none.
std::optional<data::NanoGptMeta> meta_beside(const std::filesystem::path& file);

// The files of a folder for training and testing. Without `test`, a part of `train` is held out.
struct TextFiles {
  std::filesystem::path train;
  std::optional<std::filesystem::path> test;
};
TextFiles text_files(const std::filesystem::path& path);  // a folder, or the file to train on

// The texts of tokenizer.json files for three kinds of tokens: bytes, where byte b is token b; the
// words of a vocabulary, split at white space, with "<eos>" for the end of a line; and characters,
// where character number t is token t.
std::string byte_tokenizer_json();
std::string word_tokenizer_json(const data::Vocabulary& vocabulary);
std::string character_tokenizer_json(const std::vector<std::string>& characters);

}  // namespace ebb::workloads
