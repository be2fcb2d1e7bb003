#include "text/pattern.h"

#include <fmt/core.h>
#include <unicode/regex.h>
#include <unicode/utext.h>

#include <nlohmann/json.hpp>

#include "ebb/error.h"

namespace ebb::text {
namespace {

// For one match, in ICU's steps of about a millisecond: patterns from files can take exponential
// time.
constexpr std::int32_t most_steps = 1000;
constexpr std::int32_t most_stack = 16 << 20;  // bytes

struct CloseText {
  void operator()(UText* text) const { utext_close(text); }
};

}  // namespace

class Pattern::Regex {
 public:
  explicit Regex(const Field& field) : source_(field.text()) {
    UErrorCode status = U_ZERO_ERROR;
    UParseError error{};
    pattern_.reset(
        icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(source_), 0, error, status));
    if (U_FAILURE(status))
      field.fail(fmt::format("not a regular expression ICU understands: {} at character {}",
                             u_errorName(status), error.offset));
  }

  void find(std::string_view text, std::vector<Span>& spans) const {
    UErrorCode status = U_ZERO_ERROR;
    const std::unique_ptr<UText, CloseText> utf8(
        utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status));
    const std::unique_ptr<icu::RegexMatcher> matcher(pattern_->matcher(status));
    if (U_FAILURE(status)) fail(status);
    matcher->setTimeLimit(most_steps, status);
    matcher->setStackLimit(most_stack, status);
    matcher->reset(utf8.get());
    std::size_t last = 0;
    while (matcher->find(status)) {
      const auto begin = static_cast<std::size_t>(matcher->start64(status)),
                 end = static_cast<std::size_t>(matcher->end64(status));
      if (begin != last) spans.push_back({last, begin, false});
      spans.push_back({begin, end, true});
      last = end;
    }
    if (U_FAILURE(status)) fail(status);
    if (last != text.size()) spans.push_back({last, text.size(), false});
  }

 private:
  [[noreturn]] void fail(UErrorCode status) const {
    throw ValueError(fmt::format("the regular expression \"{}\" fails on a text: {}", source_,
                                 u_errorName(status)));
  }

  std::string source_;
  std::unique_ptr<const icu::RegexPattern> pattern_;
};

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::read(const Field& field) {
  field.allow_only({"String", "Regex"});
  if (field.json().size() != 1) field.fail_expecting("an object with \"String\" or \"Regex\"");
  if (const auto text = field.find("String")) return literal(text->text());
  const Field regex = field["Regex"];
  Pattern pattern;
  pattern.regex_ = std::make_shared<Regex>(regex);
  pattern.scanner_ = find_scanner(regex.text());
  return pattern;
}

void Pattern::find(std::string_view text, std::vector<Span>& spans) const {
  spans.clear();
  if (text.empty()) return;
  if (scanner_)
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = scanner_(text.substr(at));
      spans.push_back({at, at + size, true});
      at += size;
    }
  else if (regex_)
    regex_->find(text, spans);
  else
    find_literal(text, spans);
}

void Pattern::find_literal(std::string_view text, std::vector<Span>& spans) const {
  std::size_t last = 0;
  if (!literal_.empty())
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, last)) {
      if (at != last) spans.push_back({last, at, false});
      last = at + literal_.size();
      spans.push_back({at, last, true});
    }
  if (last != text.size()) spans.push_back({last, text.size(), false});
}

}  // namespace ebb::text
