#include "ebb/report/page.h"

#include "report/page_source.h"
#include "report/runs_page.h"

namespace ebb::report {
namespace {

std::string escaped_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else
      result += c;
  }
  return result;
}

// "</" ends a script element, and "<!--" changes its parsing. In JSON "<" occurs only within
// strings, where it can be escaped.
std::string escaped_json(std::string_view json) {
  std::string result;
  result.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      result += "\\u003c";
    else
      result += c;
  }
  return result;
}

void replace(std::string& text, std::string_view mark, const std::string& by) {
  text.replace(text.find(mark), mark.size(), by);
}

std::string filled(std::string_view source, std::string_view title, std::string_view data) {
  std::string page(source);
  replace(page, "{{data}}", escaped_json(data));
  replace(page, "{{title}}", escaped_text(title));
  return page;
}

}  // namespace

std::string html_page(std::string_view title, std::string_view data) {
  return filled(page_source(), title, data);
}

std::string runs_page(std::string_view title, std::string_view data) {
  return filled(runs_page_source(), title, data);
}

}  // namespace ebb::report
