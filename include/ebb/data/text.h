// Running text as one long list of tokens, and the windows of it that language models train on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

// The words of a training text, plain or compressed (.gz), split at white space. In JSON lines
// (.jsonl) each text counts as a line. "<eos>", which ends every line, and "<unk>", which stands
// for unknown words, are always included.
class Vocabulary {
 public:
  static constexpr std::int64_t no_limit = 0;
  static constexpr std::int64_t whole_text = std::numeric_limits<std::int64_t>::max();

  // In order of first appearance. With a limit, keeps at most that many words: the two above and
  // the most frequent ones (ties: first appearance). If the rest of the text is held out, only the
  // first `tokens` tokens count.
  static Vocabulary of_text(const std::filesystem::path& path, std::int64_t limit = no_limit,
                            std::int64_t tokens = whole_text);

  std::int64_t size() const { return static_cast<std::int64_t>(words_.size()); }
  const std::string& word(std::int64_t token) const;
  std::int32_t token(std::string_view word) const;  // the token of "<unk>" for an unknown word

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  explicit Vocabulary(std::vector<std::string> words);

  std::vector<std::string> words_;  // by token
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> tokens_;
  std::int32_t unknown_ = 0;
};

// Storage of a token in a file; little-endian.
enum class TokenWidth : std::uint8_t { uint8 = 1, uint16 = 2, int32 = 4 };

// A list of tokens, in memory or in a file. Copies share it.
class TokenStream {
 public:
  // Words in memory, 4 bytes each.
  static TokenStream words(const std::filesystem::path& path, const Vocabulary& vocabulary);

  // Every byte of a file is a token, so there are 256 different ones. Bytes are read when needed.
  // Those of a compressed file (.gz) and of JSON lines (.jsonl) are kept in memory; in JSON lines,
  // each text is followed by a line end.
  static TokenStream bytes(const std::filesystem::path& path);

  // Tokens made elsewhere, read when they are needed; each must be below `vocabulary`.
  static TokenStream file(const std::filesystem::path& path, TokenWidth width,
                          std::int64_t vocabulary);

  static TokenStream of(std::vector<std::int32_t> tokens, std::int64_t vocabulary,
                        std::string name = "tokens");

  // Tokens [begin, end) of this one, under new numbers.
  TokenStream part(std::int64_t begin, std::int64_t end) const;

  std::int64_t size() const { return end_ - begin_; }
  std::int64_t vocabulary() const;
  const std::string& name() const;  // the file's, for messages

  // Tokens [begin, begin + out.size()). A token outside the vocabulary is an error that names the
  // file and the offset. Safe to call from several threads.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;

 private:
  struct Source;
  explicit TokenStream(std::shared_ptr<const Source> source);
  std::shared_ptr<const Source> source_;
  std::int64_t begin_ = 0, end_ = 0;  // of the source's tokens
};

// The number of words and line ends of a text: the number of tokens that TokenStream::words has.
std::int64_t count_words(const std::filesystem::path& path);

struct WindowOptions {
  std::int64_t sequence = 128;  // T
  std::int64_t stride = 0;  // from one window to the next; 0: T, so that every token is used once
  DType dtype = i32;        // or i64, at twice the bytes
};

// Item i holds tokens [i·stride, i·stride + T]: x (B, T) the first T, y (B, T) the last T.
class WindowDataset : public Dataset {
 public:
  explicit WindowDataset(TokenStream stream, WindowOptions options = {});

  std::int64_t size() const override { return size_; }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  TokenStream stream_;
  WindowOptions options_;
  std::int64_t size_ = 0;
};

}  // namespace ebb::data
