// BERT's clean-up of text: no control characters, plain spaces, spaces around Chinese characters,
// no accents, lower case; each can be switched off.
#include "text/normalizer.h"
#include "text/unicode_forms.h"

namespace ebb::text {
namespace {

bool is_chinese(char32_t c) {
  constexpr struct {
    char32_t first, last;
  } blocks[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  if (c < blocks[1].first) return false;
  for (const auto& block : blocks)
    if (c >= block.first && c <= block.last) return true;
  return false;
}

void clean(std::string& text) {
  std::string cleaned;
  cleaned.reserve(text.size());
  each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool is_plain_space = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == 0xFFFD || (is_control(c) && !is_plain_space)) return;
    if (is_space(c))
      cleaned += ' ';
    else
      cleaned += bytes;
  });
  text = std::move(cleaned);
}

void set_chinese_apart(std::string& text) {
  if (is_ascii(text)) return;
  std::string spaced;
  spaced.reserve(text.size());
  each_character(text, [&](char32_t c, std::string_view bytes) {
    if (is_chinese(c))
      (spaced += ' ').append(bytes) += ' ';
    else
      spaced += bytes;
  });
  text = std::move(spaced);
}

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const Field& field)
      : clean_(field.flag("clean_text", true)),
        chinese_(field.flag("handle_chinese_chars", true)),
        lower_case_(field.flag("lowercase", true)),
        strip_accents_(field.flag("strip_accents", lower_case_)) {
    field.allow_only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  }
  void apply(std::string& text) const override {
    if (clean_) clean(text);
    if (chinese_) set_chinese_apart(text);
    if (strip_accents_ && !is_ascii(text)) {
      decompose(text);
      filter_characters(text, [](char32_t c) { return !is_nonspacing_mark(c); });
    }
    if (lower_case_) make_lower_case(text);
  }

 private:
  bool clean_, chinese_, lower_case_, strip_accents_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_bert_normalizer(const Field& field) {
  if (field.type() != "BertNormalizer") return nullptr;
  return std::make_unique<BertNormalizer>(field);
}

}  // namespace ebb::text
