// Images, labelled texts, words, tokens, tokenizers and prompts.
#include <algorithm>

#include "data/nanogpt_meta.h"
#include "data/prompts.h"
#include "ebb/data/image_folder.h"
#include "ebb/data/images.h"
#include "ebb/data/labelled_text.h"
#include "ebb/data/sequences.h"
#include "ebb/data/text.h"
#include "ebb/report/log_reader.h"
#include "ebb/text/tokenizer.h"
#include "fuzz/readers.h"

namespace ebb::fuzz {
namespace {

constexpr std::int64_t classes = 10;

// The input contains two files: its first byte says how many of the following bytes belong to the
// first.
void read_two_files(std::string_view bytes, const Folder& folder) {
  const std::size_t size =
      bytes.empty() ? 0
                    : std::min<std::size_t>(static_cast<unsigned char>(bytes[0]), bytes.size() - 1);
  const std::string_view rest = bytes.substr(bytes.empty() ? 0 : 1);
  (void)data::read_idx(write_file(folder, "images", rest.substr(size)),
                       write_file(folder, "labels", rest.substr(0, size)), classes);
}

}  // namespace

void read_cifar(std::string_view bytes, const Folder& folder) {
  write_file(folder, "test_batch.bin", bytes);
  (void)data::read_cifar10(folder, data::Split::test);
}

void read_idx(std::string_view bytes, const Folder& folder) { read_two_files(bytes, folder); }
void read_idx_gzip(std::string_view bytes, const Folder& folder) { read_two_files(bytes, folder); }

void read_labelled_csv(std::string_view bytes, const Folder& folder) {
  (void)data::read_labelled_csv(write_file(folder, "texts.csv", bytes), classes);
}

void read_documents(std::string_view bytes, const Folder& folder) {
  (void)data::read_documents(write_file(folder, "texts.jsonl", bytes));
}

void read_labelled_jsonl(std::string_view bytes, const Folder& folder) {
  (void)data::read_labelled_jsonl(write_file(folder, "texts.jsonl", bytes), classes);
}

void read_prompts(std::string_view bytes, const Folder& folder) {
  (void)data::read_prompts(write_file(folder, "prompts.jsonl", bytes));
}

void read_words(std::string_view bytes, const Folder& folder) {
  const auto path = write_file(folder, "words.txt", bytes);
  const data::Vocabulary vocabulary = data::Vocabulary::of_text(path, 8);
  const data::TokenStream stream = data::TokenStream::words(path, vocabulary);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
}

// The first byte chooses the width.
void read_tokens(std::string_view bytes, const Folder& folder) {
  const data::TokenWidth widths[] = {data::TokenWidth::uint8, data::TokenWidth::uint16,
                                     data::TokenWidth::int32};
  const auto width = widths[bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]) % 3];
  const auto path = write_file(folder, "tokens.bin", bytes.substr(bytes.empty() ? 0 : 1));
  const data::TokenStream stream = data::TokenStream::file(path, width, 1000);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
}

void read_nanogpt_meta(std::string_view bytes, const Folder& folder) {
  (void)data::read_nanogpt_meta(write_file(folder, "meta.pkl", bytes));
}

void read_picture(std::string_view bytes, const Folder& folder) {
  (void)data::read_picture(write_file(folder, "picture", bytes));
}

void read_run_log(std::string_view bytes, const Folder& folder) {
  (void)report::read_json_lines(write_file(folder, "log.jsonl", bytes));
}

// Also encodes and decodes with a tokenizer that could be read.
void read_tokenizer(std::string_view bytes, const Folder&) {
  const text::Tokenizer tokenizer = text::Tokenizer::parse(bytes);
  for (const char* text :
       {"It's  12 o'clock,\r\n caf\u00e9 \u6f22\u5b57 e\u0301\u0323", "<s> a\u00a0[MASK]x</s>"})
    (void)tokenizer.decode(tokenizer.encode(text, text::Specials::with));
}

}  // namespace ebb::fuzz
