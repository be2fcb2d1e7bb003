// Text to token ids and back, as the tokenizer.json of a Hugging Face folder describes it. The ids
// are those of the Python package `tokenizers` (docs/tokenizers.md lists what is supported).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::text {

using TokenId = std::int32_t;

// When text is encoded: whether the tokens of the post-processor are added, such as [CLS] and
// [SEP]. When ids are decoded: whether special tokens appear in the text.
enum class Specials : std::uint8_t { without, with };

// Immutable; copies share it. All functions may be called from several threads.
class Tokenizer {
 public:
  // A tokenizer.json, or a folder that has one. What ebb does not support is a FileError that names
  // the field.
  static Tokenizer load(const std::filesystem::path& path);

  // The text of a tokenizer.json; `name` stands for the file in messages.
  static Tokenizer parse(std::string_view json, std::string_view name = "tokenizer.json");

  // `text` must be UTF-8. Special tokens that are written out in the text are found in any case.
  std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::without) const;

  // The same, appended to `ids`.
  void encode(std::string_view text, Specials specials, std::vector<TokenId>& ids) const;

  // An id without a token is a ValueError. The result is always UTF-8: bytes of incomplete
  // characters become U+FFFD.
  std::string decode(std::span<const TokenId> ids, Specials specials = Specials::without) const;

  std::optional<TokenId> id(std::string_view token) const;
  std::optional<std::string_view> token(TokenId id) const;

  std::int64_t size() const;  // the number of tokens
  std::int64_t vocabulary()
      const;  // the highest id + 1: at least size(), and more if ids have gaps

  std::vector<TokenId> special_ids() const;  // ascending

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

}  // namespace ebb::text
