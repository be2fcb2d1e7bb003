// NFC, NFD, NFKC, NFKD, Lowercase and StripAccents.
#include <fmt/core.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include "core/utf8.h"
#include "ebb/error.h"
#include "text/normalizer.h"
#include "text/unicode_forms.h"

namespace ebb::text {
namespace {

// ICU's, which live as long as the program.
using FindForm = const icu::Normalizer2* (*)(UErrorCode&);

const icu::Normalizer2& form(FindForm find) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = find(status);
  if (U_FAILURE(status))
    throw Error(fmt::format("ICU has no data of normalization: {}", u_errorName(status)));
  return *found;
}

void normalize(const icu::Normalizer2& form, std::string& text) {
  if (is_ascii(text)) return;  // the same in all forms
  UErrorCode status = U_ZERO_ERROR;
  std::string result;
  result.reserve(text.size());
  icu::StringByteSink<std::string> sink(&result);
  form.normalizeUTF8(0, text, sink, nullptr, status);
  if (U_FAILURE(status))
    throw ValueError(fmt::format("ICU cannot normalize a text: {}", u_errorName(status)));
  text = std::move(result);
}

class Form : public Normalizer {
 public:
  explicit Form(FindForm find) : form_(&form(find)) {}
  void apply(std::string& text) const override { normalize(*form_, text); }

 private:
  const icu::Normalizer2* form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text) const override { make_lower_case(text); }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text) const override {
    if (!is_ascii(text)) filter_characters(text, [](char32_t c) { return !is_mark(c); });
  }
};

}  // namespace

void make_lower_case(std::string& text) {
  std::string lower;
  lower.reserve(text.size());
  each_character(text, [&](char32_t code, std::string_view bytes) {
    if (code < 128)
      lower += static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code);
    else if (code == 0x130)  // the only letter that becomes two: i with a dot above
      lower += "i\xCC\x87";
    else if (const auto small = static_cast<char32_t>(u_tolower(static_cast<UChar32>(code)));
             small != code)
      append_utf8(lower, small);
    else
      lower += bytes;
  });
  text = std::move(lower);
}

void decompose(std::string& text) { normalize(form(icu::Normalizer2::getNFDInstance), text); }

std::unique_ptr<const Normalizer> make_unicode_normalizer(const Field& field) {
  const std::string& type = field.type();
  std::unique_ptr<const Normalizer> made;
  if (type == "NFC") made = std::make_unique<Form>(icu::Normalizer2::getNFCInstance);
  if (type == "NFD") made = std::make_unique<Form>(icu::Normalizer2::getNFDInstance);
  if (type == "NFKC") made = std::make_unique<Form>(icu::Normalizer2::getNFKCInstance);
  if (type == "NFKD") made = std::make_unique<Form>(icu::Normalizer2::getNFKDInstance);
  if (type == "Lowercase") made = std::make_unique<Lowercase>();
  if (type == "StripAccents") made = std::make_unique<StripAccents>();
  if (made) field.allow_only({"type"});
  return made;
}

}  // namespace ebb::text
