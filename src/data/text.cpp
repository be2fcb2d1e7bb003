#include "ebb/data/text.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "data/file.h"
#include "data/gzip.h"
#include "data/items.h"
#include "data/windows.h"
#include "ebb/data/sequences.h"

namespace ebb::data {
namespace {

constexpr std::string_view end_of_line = "<eos>", unknown_word = "<unk>";
constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t longest_word = 1 << 16;  // bytes; a file with longer words is not text

// Each text of JSON lines as a line of its own. A prompt and its answer are one text.
template <class Take>
void each_document(const std::filesystem::path& path, Take&& take) {
  for (const Document& document : read_documents(path)) {
    take(std::string_view(document.prompt));
    take(std::string_view(document.text));
    take(std::string_view("\n"));
  }
}

// The text of a file, plain or compressed, in pieces.
template <class Take>
void each_piece(const std::filesystem::path& path, Take&& take) {
  if (is_json_lines(path)) return each_document(path, take);
  if (!is_gzip(path)) return File(path).each_piece(take);
  GzipFile file(path);
  std::vector<char> piece(1 << 20);
  while (const std::size_t got = file.some(std::as_writable_bytes(std::span(piece))))
    take(std::string_view(piece.data(), got));
}

// Every word of a text and "<eos>" after every line; a last line without a line end counts too.
template <class Take>
void each_word(const std::filesystem::path& path, Take&& take) {
  std::string word;
  bool open_line = false;
  each_piece(path, [&](std::string_view piece) {
    for (char c : piece) {
      if (c != ' ' && c != '\t' && c != '\r' && c != '\v' && c != '\f' && c != '\n') {
        word += c;
        open_line = true;
        if (word.size() > longest_word)
          fail_file(path, "words are expected, but one is longer than {} bytes", longest_word);
        continue;
      }
      if (!word.empty()) take(word);
      word.clear();
      if (c == '\n') take(end_of_line);
      open_line = c != '\n';
    }
  });
  if (!word.empty()) take(word);
  if (open_line) take(end_of_line);
}

}  // namespace

// --- Vocabulary

Vocabulary::Vocabulary(std::vector<std::string> words) : words_(std::move(words)) {
  for (std::size_t i = 0; i < words_.size(); ++i)
    tokens_.emplace(words_[i], static_cast<std::int32_t>(i));
  unknown_ = tokens_.at(std::string(unknown_word));
}

Vocabulary Vocabulary::of_text(const std::filesystem::path& path, std::int64_t limit,
                               std::int64_t tokens) {
  require(
      limit == no_limit || (limit >= 2 && limit <= most_tokens), "Vocabulary",
      fmt::format("a limit counts \"<eos>\" and \"<unk>\" and is at least 2, but {} came", limit));
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> seen;
  std::vector<std::string> words;
  std::vector<std::int64_t> counts;
  const auto count = [&](std::string_view word, std::int64_t times) {
    auto found = seen.find(word);
    if (found == seen.end()) {
      found = seen.emplace(std::string(word), words.size()).first;
      words.emplace_back(word);
      counts.push_back(0);
    }
    counts[found->second] += times;
  };
  std::int64_t left = tokens;
  each_word(path, [&](std::string_view word) {
    if (left-- > 0) count(word, 1);
  });
  if (words.empty() || (words.size() == 1 && words[0] == end_of_line))
    fail_file(path, "words are expected, but the file has none");
  if (words.size() >= static_cast<std::size_t>(most_tokens))
    fail_file(path, "has more than {} different words", most_tokens);
  count(end_of_line, 0);  // the first part of a text may have no line end
  count(unknown_word, 0);
  if (limit != no_limit && static_cast<std::size_t>(limit) < words.size()) {
    for (std::string_view kept : {end_of_line, unknown_word})
      counts[seen.find(kept)->second] = std::numeric_limits<std::int64_t>::max();
    std::vector<std::size_t> order(words.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return counts[a] > counts[b]; });
    order.resize(static_cast<std::size_t>(limit));
    std::sort(order.begin(), order.end());
    std::vector<std::string> kept;
    for (std::size_t i : order) kept.push_back(std::move(words[i]));
    words = std::move(kept);
  }
  return Vocabulary(std::move(words));
}

const std::string& Vocabulary::word(std::int64_t token) const {
  require(token >= 0 && token < size(), "Vocabulary",
          fmt::format("token {} was asked for, but there are {}", token, size()));
  return words_[static_cast<std::size_t>(token)];
}

std::int32_t Vocabulary::token(std::string_view word) const {
  const auto found = tokens_.find(word);
  return found == tokens_.end() ? unknown_ : found->second;
}

// --- TokenStream

struct TokenStream::Source {
  std::string name;
  std::int64_t size = 0, vocabulary = 0;
  std::vector<std::int32_t> memory;  // or a compressed file's bytes, or a file
  std::string bytes;
  std::optional<File> file;
  TokenWidth width = TokenWidth::int32;
};

TokenStream::TokenStream(std::shared_ptr<const Source> source)
    : source_(std::move(source)), end_(source_->size) {}

std::int64_t count_words(const std::filesystem::path& path) {
  std::int64_t count = 0;
  each_word(path, [&](std::string_view) { ++count; });
  return count;
}

TokenStream TokenStream::part(std::int64_t begin, std::int64_t end) const {
  require(0 <= begin && begin <= end && end <= size(), "TokenStream",
          fmt::format("{}: tokens [{}, {}) were asked for, but there are {}", name(), begin, end,
                      size()));
  TokenStream some = *this;
  some.begin_ = begin_ + begin, some.end_ = begin_ + end;
  return some;
}

TokenStream TokenStream::words(const std::filesystem::path& path, const Vocabulary& vocabulary) {
  std::vector<std::int32_t> tokens;
  each_word(path, [&](std::string_view word) { tokens.push_back(vocabulary.token(word)); });
  if (tokens.empty()) fail_file(path, "words are expected, but the file has none");
  tokens.shrink_to_fit();
  return of(std::move(tokens), vocabulary.size(), path.string());
}

TokenStream TokenStream::bytes(const std::filesystem::path& path) {
  if (!is_gzip(path) && !is_json_lines(path)) return file(path, TokenWidth::uint8, 256);
  auto source = std::make_shared<Source>();
  if (is_json_lines(path))
    each_document(path, [&](std::string_view piece) { source->bytes += piece; });
  else
    source->bytes = whole_text(path);
  if (source->bytes.empty()) fail_file(path, "text is expected, but the file is empty");
  source->name = path.string();
  source->size = static_cast<std::int64_t>(source->bytes.size());
  source->vocabulary = 256;
  return TokenStream(std::move(source));
}

TokenStream TokenStream::file(const std::filesystem::path& path, TokenWidth width,
                              std::int64_t vocabulary) {
  require(vocabulary > 0 && vocabulary <= most_tokens, "TokenStream",
          fmt::format("a vocabulary has 1 to {} tokens, but {} came", most_tokens, vocabulary));
  auto source = std::make_shared<Source>();
  source->file.emplace(path);
  const std::int64_t bytes = source->file->size(), each = static_cast<std::int64_t>(width);
  if (bytes == 0) fail_file(path, "tokens are expected, but the file is empty");
  if (bytes % each != 0)
    fail_file(path, "tokens of {} bytes are expected, but {} bytes are no multiple of that", each,
              bytes);
  source->name = path.string();
  source->size = bytes / each;
  source->vocabulary = vocabulary;
  source->width = width;
  return TokenStream(std::move(source));
}

TokenStream TokenStream::of(std::vector<std::int32_t> tokens, std::int64_t vocabulary,
                            std::string name) {
  auto source = std::make_shared<Source>();
  for (std::int32_t token : tokens)
    require(
        token >= 0 && token < vocabulary, "TokenStream",
        fmt::format("{}: tokens of [0, {}) are expected, but {} came", name, vocabulary, token));
  source->name = std::move(name);
  source->size = static_cast<std::int64_t>(tokens.size());
  source->vocabulary = vocabulary;
  source->memory = std::move(tokens);
  return TokenStream(std::move(source));
}

std::int64_t TokenStream::vocabulary() const { return source_->vocabulary; }
const std::string& TokenStream::name() const { return source_->name; }

void TokenStream::read(std::int64_t begin, std::span<std::int32_t> out) const {
  const Source& s = *source_;
  const auto count = static_cast<std::int64_t>(out.size());
  require(begin >= 0 && count <= size() && begin <= size() - count, "TokenStream",
          fmt::format("{}: tokens [{}, {} + {}) were asked for, but there are {}", s.name, begin,
                      begin, count, size()));
  begin += begin_;
  if (!s.bytes.empty()) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<unsigned char>(s.bytes[static_cast<std::size_t>(begin) + i]);
    return;
  }
  if (!s.file) {
    std::copy_n(s.memory.begin() + begin, count, out.begin());
    return;
  }
  const auto each = static_cast<std::size_t>(s.width);
  const std::span<std::byte> raw = std::as_writable_bytes(out).first(out.size() * each);
  s.file->read(begin * static_cast<std::int64_t>(each), raw);
  // Widened in place from the back, where no byte is overwritten before it is read.
  for (std::size_t i = out.size(); i-- > 0;) {
    std::uint32_t token = 0;
    for (std::size_t b = each; b-- > 0;)
      token = token << 8 | std::to_integer<std::uint32_t>(raw[i * each + b]);
    if (token >= static_cast<std::uint64_t>(s.vocabulary))
      fail_file(s.file->path(), "offset {}: a token of [0, {}) is expected, but {} came",
                (static_cast<std::size_t>(begin) + i) * each, s.vocabulary, token);
    out[i] = static_cast<std::int32_t>(token);
  }
}

// --- WindowDataset

WindowDataset::WindowDataset(TokenStream stream, WindowOptions options)
    : stream_(std::move(stream)), options_(options) {
  if (options_.stride == 0) options_.stride = options_.sequence;
  require(options_.sequence > 0 && options_.stride > 0, "WindowDataset",
          fmt::format("sequence and stride must be positive, but {} and {} came", options_.sequence,
                      options_.stride));
  require(options_.dtype == i32 || options_.dtype == i64, "WindowDataset",
          fmt::format("tokens are int32 or int64, but {} came", name(options_.dtype)));
  require(stream_.size() > options_.sequence, "WindowDataset",
          fmt::format("{}: a window of {} tokens and the one after is expected, but there are {}",
                      stream_.name(), options_.sequence, stream_.size()));
  size_ = (stream_.size() - 1 - options_.sequence) / options_.stride + 1;
}

std::vector<TensorType> WindowDataset::types(std::int64_t batch) const {
  return window_types(batch, options_.sequence, options_.dtype);
}

Batch WindowDataset::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("WindowDataset", items, size_);
  const auto fill = [&](std::int64_t item, std::span<std::int32_t> window) {
    stream_.read(item * options_.stride, window);
  };
  return options_.dtype == i32 ? window_batch<std::int32_t>(items, options_.sequence, fill)
                               : window_batch<std::int64_t>(items, options_.sequence, fill);
}

}  // namespace ebb::data
