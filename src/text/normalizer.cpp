#include "text/normalizer.h"

#include <fmt/core.h>

#include <vector>

#include "ebb/error.h"
#include "text/characters.h"
#include "text/pattern.h"

namespace ebb::text {
namespace {

class Sequence : public Normalizer {
 public:
  explicit Sequence(const Field& field) {
    field.allow_only({"type", "normalizers"});
    for (const Field& item : field["normalizers"].items()) steps_.push_back(make_normalizer(item));
  }
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(const Field& field)
      : pattern_(Pattern::read(field["pattern"])), content_(field["content"].text()) {
    field.allow_only({"type", "pattern", "content"});
  }
  void apply(std::string& text) const override {
    std::vector<Span> spans;
    pattern_.find(text, spans);
    std::string replaced;
    replaced.reserve(text.size());
    for (const Span& span : spans) {
      if (span.is_match)
        replaced += content_;
      else
        replaced.append(text, span.begin, span.end - span.begin);
      limit_growth("Replace", text.size(), replaced.size());
    }
    text = std::move(replaced);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(const Field& field) : prefix_(field["prepend"].text()) {
    field.allow_only({"type", "prepend"});
  }
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Strip : public Normalizer {
 public:
  explicit Strip(const Field& field)
      : left_(field.flag("strip_left", true)), right_(field.flag("strip_right", true)) {
    field.allow_only({"type", "strip_left", "strip_right"});
  }
  void apply(std::string& text) const override {
    std::size_t begin = 0;
    while (left_ && begin < text.size()) {
      const Character c = character_at(text.data() + begin);
      if (!is_space(c.code)) break;
      begin += c.size;
    }
    std::size_t end = text.size();
    while (right_ && end > begin) {
      const Character c = last_character(std::string_view(text).substr(0, end));
      if (!is_space(c.code)) break;
      end -= c.size;
    }
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

}  // namespace

void limit_growth(const char* type, std::size_t before, std::size_t after) {
  constexpr std::size_t most = 64;
  if (after > (1u << 20) + most * before)
    throw ValueError(
        fmt::format("the normalizer {} makes more than {} bytes of each byte of text", type, most));
}

std::unique_ptr<const Normalizer> make_normalizer(const Field& field) {
  const std::string& type = field.type();
  if (type == "Sequence") return std::make_unique<Sequence>(field);
  if (type == "Replace") return std::make_unique<Replace>(field);
  if (type == "Prepend") return std::make_unique<Prepend>(field);
  if (type == "Strip") return std::make_unique<Strip>(field);
  if (auto made = make_unicode_normalizer(field)) return made;
  if (auto made = make_bert_normalizer(field)) return made;
  if (auto made = make_charsmap_normalizer(field)) return made;
  field["type"].fail_expecting(
      "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, BertNormalizer, Replace, Prepend, "
      "Strip or Precompiled");
}

}  // namespace ebb::text
