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

// What Options::tokens says, or else what a file's name says: .bin files hold numbers, ptb.*.txt,
// the Penn Treebank's, words, and any other text bytes. It is the same for a file that is named and
// for one that is found in a folder. An error where the option and the name contradict each other.
// Nothing: numbers of a width that the file's content has to tell.
std::optional<TokenKind> token_kind(const Options& options, const std::filesystem::path& file);

// Tokens in a .bin file. Without a width of Options::tokens, the first tokens tell it: int32, where
// they are below the vocabulary as such, and otherwise uint16, where they are so. `kind` is set to
// what was used.
data::TokenStream token_file(const Options& options, const std::filesystem::path& file,
                             std::int64_t vocabulary, TokenKind& kind);

// What nanoGPT's meta.pkl in the folder of a .bin file says; nothing if there is none.
std::optional<data::NanoGptMeta> meta_beside(const std::filesystem::path& file);

// The files of a folder that are trained on and tested with. Without `test`, a part of `train` is
// held out.
struct TextFiles {
  std::filesystem::path train;
  std::optional<std::filesystem::path> test;
};
TextFiles text_files(const std::filesystem::path& path);  // a folder, or the file to train on

// The texts of tokenizer.json files that give these tokens: byte b is token b; the words of a
// vocabulary, split at white space, with "<eos>" for the end of a line; characters, of which token
// t is number t.
std::string byte_tokenizer_json();
std::string word_tokenizer_json(const data::Vocabulary& vocabulary);
std::string character_tokenizer_json(const std::vector<std::string>& characters);

}  // namespace ebb::workloads
