#include "ebb/text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"
#include "text/added_tokens.h"
#include "text/byte_level.h"
#include "text/characters.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"

namespace ebb::text {
namespace {

constexpr std::int64_t largest_file = std::int64_t{1} << 27;  // bytes; the largest known have 2^25

// Models count symbols in 32 bits; normalizers may make a text a few times longer.
constexpr std::size_t longest_text = std::numeric_limits<std::int32_t>::max();  // bytes, normalized
constexpr std::size_t longest_input = longest_text / 8;

// The buffers of one call of encode. Consecutive calls share them, with the cache of words.
struct Workspace {
  Pieces pieces;
  ModelBuffers model;
  std::string normalized, written;
};

template <class Make>
auto read_optional(const Field& file, const char* name, Make&& make) -> decltype(make(file)) {
  const auto field = file.find(name);
  return field ? make(*field) : decltype(make(file)){};
}

// The position of the first byte that is not UTF-8, or the size of the text.
std::size_t valid_bytes(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = first_utf8_step(text.substr(at));
    if (!step.is_valid) return at;
    at += step.size;
  }
  return text.size();
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const Field& file);

  void encode(std::string_view text, Workspace& work, std::vector<TokenId>& ids) const;
  void encode_normalized(std::string_view text, bool at_start, Workspace& work,
                         std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, Workspace& work, std::vector<TokenId>& ids) const;

  std::unique_ptr<const Model> model;
  std::vector<AddedToken> added;
  std::unique_ptr<const Normalizer> normalizer;  // or null, as the decoder
  PreTokenizers pre_tokenizers;
  SpecialTokens special;
  std::unique_ptr<const Decoder> decoder;
  AddedTokenFinder in_text, in_normalized;
  ByteAlphabet alphabet;

  struct Token {
    std::string_view text;
    bool special = false;
  };
  std::unordered_map<TokenId, Token> by_id;
  StringMap added_ids;
  TokenId highest = -1;

  // Workspaces that no call is using.
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle;
};

Tokenizer::Parts::Parts(const Field& file)
    : model(make_model(file["model"])),
      added(read_optional(file, "added_tokens",
                          [&](const Field& f) { return read_added_tokens(f, model->tokens()); })),
      normalizer(read_optional(file, "normalizer", make_normalizer)),
      pre_tokenizers(read_optional(file, "pre_tokenizer", make_pre_tokenizers)),
      special(read_optional(file, "post_processor", read_post_processor)),
      decoder(read_optional(file, "decoder", make_decoder)),
      in_text(added, false, nullptr),
      in_normalized(added, true, normalizer.get()) {
  file.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"});
  for (const char* name : {"truncation", "padding"})
    if (const auto field = file.find(name))
      field->fail("is not supported: ids are given in full; set it to null");
  if (const auto version = file.find("version"); version && version->text() != "1.0")
    version->fail_expecting("\"1.0\"");
  const auto add = [&](TokenId id, std::string_view text, bool is_special) {
    Token& token = by_id[id];
    token = {text, token.special || is_special};
    highest = std::max(highest, id);
  };
  const StringMap& tokens = model->tokens();
  for (const auto& entry : tokens.entries()) add(entry.value, tokens.key(entry), false);
  for (const AddedToken& token : added) {
    add(token.id, token.content, token.special);
    added_ids.set(token.content, token.id);
  }
  for (const auto* ids : {&special.before, &special.after})
    for (TokenId id : *ids)
      if (!by_id.contains(id))
        file["post_processor"].fail(fmt::format("no token has the id {}", id));
}

void Tokenizer::Parts::encode(std::string_view text, Workspace& work,
                              std::vector<TokenId>& ids) const {
  in_text.divide(
      text,
      [&](std::string_view part) {
        const bool part_at_start = part.data() == text.data();
        std::string_view normalized = part;
        if (normalizer) {
          work.normalized = part;
          normalizer->apply(work.normalized);
          normalized = work.normalized;
          if (normalized.size() > longest_text)
            throw ValueError(
                fmt::format("a normalized text of at most {} bytes is expected, but {} came",
                            longest_text, normalized.size()));
        }
        in_normalized.divide(
            normalized,
            [&](std::string_view rest) {
              encode_normalized(rest, part_at_start && rest.data() == normalized.data(), work, ids);
            },
            [&](TokenId id) { ids.push_back(id); });
      },
      [&](TokenId id) { ids.push_back(id); });
}

void Tokenizer::Parts::encode_normalized(std::string_view text, bool at_start, Workspace& work,
                                         std::vector<TokenId>& ids) const {
  work.pieces.store.clear();
  work.pieces.list.assign(1, {text, at_start});
  for (const auto& step : pre_tokenizers.steps) step->apply(work.pieces);
  for (const Piece& piece : work.pieces.list) encode_word(piece.text, work, ids);
}

void Tokenizer::Parts::encode_word(std::string_view word, Workspace& work,
                                   std::vector<TokenId>& ids) const {
  if (work.model.cache.append(word, ids)) return;
  const std::size_t before = ids.size();
  if (pre_tokenizers.gives_bytes) {
    work.written.clear();
    alphabet.append(word, work.written);
    model->encode(work.written, work.model, ids);
  } else {
    model->encode(word, work.model, ids);
  }
  work.model.cache.add(word, std::span(ids).subspan(before));
}

Tokenizer::Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  return parse(data::File(file).text(largest_file), file.string());
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view name) {
  try {
    const nlohmann::json file = parse_json(json);
    return Tokenizer(std::make_shared<const Parts>(Field(file, "")));
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: {}", name, error.what()));
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3);  // English has about four bytes to a token
  encode(text, specials, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, Specials specials, std::vector<TokenId>& ids) const {
  if (const std::size_t valid = valid_bytes(text); valid < text.size())
    throw ValueError(fmt::format("text must be UTF-8, but byte {} is 0x{:02X}", valid,
                                 static_cast<unsigned char>(text[valid])));
  if (text.size() > longest_input)
    throw ValueError(
        fmt::format("a text of at most 256 MiB is expected, but {} bytes came", text.size()));
  std::unique_ptr<Workspace> work;
  {
    const std::lock_guard lock(parts_->mutex);
    if (!parts_->idle.empty()) {
      work = std::move(parts_->idle.back());
      parts_->idle.pop_back();
    }
  }
  if (!work) work = std::make_unique<Workspace>();
  const auto& [before, after] = parts_->special;
  if (specials == Specials::with) ids.insert(ids.end(), before.begin(), before.end());
  parts_->encode(text, *work, ids);
  if (specials == Specials::with) ids.insert(ids.end(), after.begin(), after.end());
  const std::lock_guard lock(parts_->mutex);
  parts_->idle.push_back(std::move(work));
}

std::string Tokenizer::decode(std::span<const TokenId> ids, Specials specials) const {
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto found = parts_->by_id.find(ids[i]);
    if (found == parts_->by_id.end())
      throw ValueError(fmt::format("ids[{}]: no token has the id {}", i, ids[i]));
    if (found->second.special && specials == Specials::without) continue;
    tokens.emplace_back(found->second.text);
  }
  std::string text;
  if (parts_->decoder) {
    parts_->decoder->apply(tokens);
    for (const std::string& token : tokens) text += token;
  } else {
    for (std::size_t i = 0; i < tokens.size(); ++i) (text += i > 0 ? " " : "") += tokens[i];
  }
  return text;
}

std::optional<TokenId> Tokenizer::id(std::string_view token) const {
  if (const TokenId* id = parts_->added_ids.find(token)) return *id;
  if (const TokenId* id = parts_->model->tokens().find(token)) return *id;
  return std::nullopt;
}

std::optional<std::string_view> Tokenizer::token(TokenId id) const {
  const auto found = parts_->by_id.find(id);
  if (found == parts_->by_id.end()) return std::nullopt;
  return found->second.text;
}

std::int64_t Tokenizer::size() const { return static_cast<std::int64_t>(parts_->by_id.size()); }
std::int64_t Tokenizer::vocabulary() const { return std::int64_t{parts_->highest} + 1; }

std::vector<TokenId> Tokenizer::special_ids() const {
  std::vector<TokenId> ids;
  for (const auto& [id, token] : parts_->by_id)
    if (token.special) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace ebb::text
