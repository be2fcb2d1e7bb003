#include "text/decoder.h"

#include <algorithm>

#include "ebb/error.h"
#include "text/characters.h"
#include "text/metaspace.h"
#include "text/normalizer.h"
#include "text/pattern.h"

namespace ebb::text {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

class SequenceDecoder : public Decoder {
 public:
  explicit SequenceDecoder(const Field& field) {
    field.allow_only({"type", "decoders"});
    for (const Field& item : field["decoders"].items()) steps_.push_back(make_decoder(item));
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<const Decoder>> steps_;
};

class ReplaceDecoder : public Decoder {
 public:
  explicit ReplaceDecoder(const Field& field)
      : pattern_(Pattern::read(field["pattern"])), content_(field["content"].text()) {
    field.allow_only({"type", "pattern", "content"});
  }
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<Span> spans;
    for (std::string& token : tokens) {
      pattern_.find(token, spans);
      std::string replaced;
      for (const Span& span : spans) {
        if (span.is_match)
          replaced += content_;
        else
          replaced.append(token, span.begin, span.end - span.begin);
        limit_growth("Replace", token.size(), replaced.size());
      }
      token = std::move(replaced);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Fuse : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, std::move(all));
  }
};

// Takes up to `start` and `stop` characters equal to `content` from the ends of every token.
class StripDecoder : public Decoder {
 public:
  explicit StripDecoder(const Field& field)
      : content_(field["content"].text()),
        start_(field["start"].integer(0, most)),
        stop_(field["stop"].integer(0, most)) {
    field.allow_only({"type", "content", "start", "stop"});
    if (content_.empty() || character_at(content_.data()).size != content_.size())
      field["content"].fail_expecting("one character");
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start_ && rest.starts_with(content_); ++i)
        rest.remove_prefix(content_.size());
      for (std::int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  static constexpr std::int64_t most = 1 << 30;
  std::string content_;
  std::int64_t start_, stop_;
};

class Metaspace : public Decoder {
 public:
  explicit Metaspace(const Field& field) : settings_(read_metaspace(field)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], settings_.replacement,
                  i == 0 && settings_.prepend != PrependScheme::never ? "" : " ");
  }

 private:
  MetaspaceSettings settings_;
};

// Joins the parts of words, and removes spaces that English does not use.
class WordPieceDecoder : public Decoder {
 public:
  explicit WordPieceDecoder(const Field& field)
      : prefix_(field.text("prefix", "##")), cleanup_(field.flag("cleanup", true)) {
    field.allow_only({"type", "prefix", "cleanup"});
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        if (tokens[i].starts_with(prefix_))
          tokens[i].erase(0, prefix_.size());
        else
          tokens[i].insert(0, 1, ' ');
      }
      if (cleanup_) clean_up(tokens[i]);
    }
  }

 private:
  static void clean_up(std::string& text) {
    constexpr std::pair<std::string_view, std::string_view> rules[] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : rules) replace_all(text, from, to);
  }

  std::string prefix_;
  bool cleanup_;
};

// The end of a word is marked with a suffix.
class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(const Field& field) : suffix_(field.text("suffix", "</w>")) {
    field.allow_only({"type", "suffix"});
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const Field& field) {
  const std::string& type = field.type();
  if (type == "Sequence") return std::make_unique<SequenceDecoder>(field);
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(field);
  if (type == "Strip") return std::make_unique<StripDecoder>(field);
  if (type == "Metaspace") return std::make_unique<Metaspace>(field);
  if (type == "WordPiece") return std::make_unique<WordPieceDecoder>(field);
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(field);
  if (type == "Fuse") {
    field.allow_only({"type"});
    return std::make_unique<Fuse>();
  }
  if (auto made = make_byte_decoder(field)) return made;
  field["type"].fail_expecting(
      "Sequence, ByteLevel, ByteFallback, WordPiece, Metaspace, Replace, Fuse, Strip or "
      "BPEDecoder");
}

}  // namespace ebb::text
