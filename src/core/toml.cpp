#include "core/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/toml_number.h"
#include "core/utf8.h"
#include "ebb/error.h"

namespace ebb::toml {
namespace {

using Made = Table::Made;

bool is_bare(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '-'; }

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Table run() {
    if (!is_utf8(text_)) fail_at_bad_byte();
    if (text_.starts_with("\xEF\xBB\xBF")) at_ += 3;  // a byte order mark
    Table* current = &root_;
    for (;;) {
      skip_blank_lines();
      if (done()) return std::move(root_);
      if (peek() == '[')
        current = &header();
      else
        assignment(*current, 0);
      end_of_line();
    }
  }

 private:
  // --- Characters

  bool done() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool looking_at(std::string_view part) const { return text_.substr(at_).starts_with(part); }
  bool take(char c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // A newline in either of its two forms.
  bool take_newline() {
    if (!looking_at("\n") && !looking_at("\r\n")) return false;
    at_ += peek() == '\r' ? 2 : 1;
    return true;
  }
  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  void skip_comment() {
    if (!take('#')) return;
    while (!done() && !looking_at("\n") && !looking_at("\r\n")) {
      refuse_control();
      ++at_;
    }
  }
  // Spaces, comments and ends of lines.
  void skip_blank_lines() {
    do {
      skip_spaces();
      skip_comment();
    } while (take_newline());
  }
  void end_of_line() {
    skip_spaces();
    skip_comment();
    if (!done() && !take_newline()) fail(fmt::format("the line should end here, but {}", found()));
  }
  void refuse_control() const {
    const unsigned char c = static_cast<unsigned char>(peek());
    if ((c < 0x20 && c != '\t') || c == 0x7F)
      fail(fmt::format("the control character U+{:04X} cannot stand here", c));
  }

  // --- Errors

  Position position(std::size_t at) const {
    Position result;
    const std::string_view before = text_.substr(0, at);
    result.line += static_cast<int>(std::count(before.begin(), before.end(), '\n'));
    const std::size_t line = before.rfind('\n');
    for (const char c : line == std::string_view::npos ? before : before.substr(line + 1))
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++result.column;
    return result;
  }
  // Positions are requested in the order of the text, so that all of them together take time
  // proportional to its length.
  Position here() {
    for (; counted_ < at_; ++counted_) {
      if (text_[counted_] == '\n')
        ++now_.line, now_.column = 1;
      else if ((static_cast<unsigned char>(text_[counted_]) & 0xC0) != 0x80)
        ++now_.column;
    }
    return now_;
  }
  [[noreturn]] void fail_at(Position place, const std::string& what) const {
    throw ValueError(fmt::format("{}:{}:{}: {}", source_, place.line, place.column, what));
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(position(at_), what); }
  [[noreturn]] void fail_at_bad_byte() {
    while (true) {
      const CodePoint point = first_code_point(text_.substr(at_));
      if (point.length == 1 && point.value > 0x7F) break;
      at_ += point.length;
    }
    fail("a byte is not UTF-8");
  }
  std::string found() const {
    if (done()) return "the file ends";
    if (looking_at("\n") || looking_at("\r\n")) return "the line ends";
    const std::string_view rest = text_.substr(at_);
    const char c = rest[0];
    if (static_cast<unsigned char>(c) < 0x20) return fmt::format("U+{:04X} came", c);
    return fmt::format("\"{}\" came", rest.substr(0, first_code_point(rest).length));
  }

  // --- Keys

  struct Part {
    std::string text;
    Position at;
  };

  Part key_part() {
    Part part{{}, here()};
    if (looking_at("\"\"\"") || looking_at("'''")) fail("a key cannot be a multi-line string");
    if (peek() == '"' || peek() == '\'') {
      part.text = peek() == '"' ? basic_string() : literal_string();
      return part;
    }
    while (!done() && is_bare(peek())) part.text += text_[at_++];
    if (part.text.empty()) fail(fmt::format("a key is expected, but {}", found()));
    return part;
  }

  std::vector<Part> dotted_key(int depth) {
    std::vector<Part> parts{key_part()};
    for (;;) {
      const std::size_t before = at_;
      skip_spaces();
      if (!take('.')) {
        at_ = before;
        return parts;
      }
      skip_spaces();
      check_depth(depth + static_cast<int>(parts.size()));
      parts.push_back(key_part());
    }
  }

  static std::string joined(const std::vector<Part>& parts, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) text += '.';
      text += key(parts[i].text);
    }
    return text;
  }

  void check_depth(int depth) const {
    if (depth >= max_depth)
      fail(fmt::format("tables and arrays are nested more than {} deep", max_depth));
  }

  // --- Tables

  Table& new_table(Table& parent, const Part& part, Made how) {
    Entry& entry = parent.add({part.text, part.at, {Table{how}, part.at}});
    return std::get<Table>(entry.value.data);
  }

  Table& header() {
    if (looking_at("[[")) fail("arrays of tables ([[...]]) are valid TOML, but are not read here");
    take('[');
    skip_spaces();
    const std::vector<Part> parts = dotted_key(0);
    skip_spaces();
    if (!take(']')) fail(fmt::format("\"]\" is expected after the table's name, but {}", found()));
    Table* table = &root_;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      Entry* entry = table->find(parts[i].text);
      if (!entry) {
        table = &new_table(*table, parts[i], last ? Made::by_header : Made::on_the_way);
        continue;
      }
      Table* inside = std::get_if<Table>(&entry->value.data);
      const bool may =
          inside && (last ? inside->made == Made::on_the_way : inside->made != Made::whole);
      if (!may) twice(parts, i + 1, entry->at);
      table = inside;
      if (last) table->made = Made::by_header;
    }
    return *table;
  }

  void assignment(Table& into, int depth) {
    const std::vector<Part> parts = dotted_key(depth);
    Table* table = &into;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      Entry* entry = table->find(parts[i].text);
      Table* inside = entry ? std::get_if<Table>(&entry->value.data) : nullptr;
      if (entry && (!inside || inside->made != Made::by_dots)) twice(parts, i + 1, entry->at);
      table = inside ? inside : &new_table(*table, parts[i], Made::by_dots);
    }
    if (const Entry* before = table->find(parts.back().text))
      twice(parts, parts.size(), before->at);
    skip_spaces();
    if (!take('=')) fail(fmt::format("\"=\" is expected after the key, but {}", found()));
    skip_spaces();
    Value read = value(depth + static_cast<int>(parts.size()));
    table->add({parts.back().text, parts.back().at, std::move(read)});
  }

  [[noreturn]] void twice(const std::vector<Part>& parts, std::size_t count,
                          Position before) const {
    fail_at(parts[count - 1].at, fmt::format("the key {} comes twice: it is in line {} already",
                                             joined(parts, count), before.line));
  }

  // --- Values

  Value value(int depth) {
    const Position at = here();
    Value result = unplaced_value(depth);
    result.at = at;
    return result;
  }

  Value unplaced_value(int depth) {
    if (looking_at("\"\"\"")) return {multi_line_string('"')};
    if (looking_at("'''")) return {multi_line_string('\'')};
    if (peek() == '"') return {basic_string()};
    if (peek() == '\'') return {literal_string()};
    if (peek() == '[') return {array(depth)};
    if (peek() == '{') return {inline_table(depth)};
    return word();
  }

  Value word() {
    const std::size_t begin = at_;
    while (!done() && (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':')) ++at_;
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (text == "true" || text == "false") return {text == "true"};
    ReadNumber read = read_number(text);
    if (read.value) return std::move(*read.value);
    at_ = begin;
    if (text.empty()) fail(fmt::format("a value is expected, but {}", found()));
    if (is_date(text))
      fail(fmt::format("{} is a date or a time: valid TOML, but not read here", text));
    if (read.too_large) fail(fmt::format("{} cannot be held in 64 bits", text));
    fail(fmt::format("{} is no value: strings need quotes, such as \"{}\"", text, text));
  }

  std::vector<Value> array(int depth) {
    check_depth(depth);
    take('[');
    std::vector<Value> values;
    for (;;) {
      skip_blank_lines();
      if (take(']')) return values;
      values.push_back(value(depth + 1));
      skip_blank_lines();
      if (take(',')) continue;
      if (!take(']')) fail(fmt::format("\",\" or \"]\" is expected in the array, but {}", found()));
      return values;
    }
  }

  Table inline_table(int depth) {
    check_depth(depth);
    take('{');
    Table table;
    skip_spaces();
    if (take('}')) return table;
    for (;;) {
      skip_spaces();
      assignment(table, depth);
      skip_spaces();
      if (take(',')) continue;
      if (!take('}'))
        fail(fmt::format("\",\" or \"}}\" is expected in the table, but {}", found()));
      return table;
    }
  }

  std::string basic_string() {
    take('"');
    std::string text;
    while (!take('"')) {
      if (done() || looking_at("\n") || looking_at("\r\n"))
        fail(fmt::format("a string's closing quote is missing: {}", found()));
      refuse_control();
      if (take('\\'))
        escape(text);
      else
        text += text_[at_++];
    }
    return text;
  }

  std::string literal_string() {
    take('\'');
    std::string text;
    while (!take('\'')) {
      if (done() || looking_at("\n") || looking_at("\r\n"))
        fail(fmt::format("a string's closing quote is missing: {}", found()));
      refuse_control();
      text += text_[at_++];
    }
    return text;
  }

  // A newline right after the opening quotes does not count, and up to two quotes may stand before
  // the closing three.
  std::string multi_line_string(char quote) {
    const std::string three(3, quote);
    at_ += 3;
    take_newline();
    std::string text;
    for (;;) {
      if (done()) fail("a string's closing quotes are missing: the file ends");
      if (looking_at(three)) {
        at_ += 3;
        for (int extra = 0; extra < 2 && take(quote); ++extra) text += quote;
        return text;
      }
      if (take_newline()) {
        text += '\n';
        continue;
      }
      refuse_control();
      if (quote == '"' && take('\\')) {
        if (!take_line_continuation()) escape(text);
      } else {
        text += text_[at_++];
      }
    }
  }

  // A backslash at the end of a line skips everything up to the next character.
  bool take_line_continuation() {
    const std::size_t before = at_;
    skip_spaces();
    if (!take_newline()) {
      at_ = before;
      return false;
    }
    do skip_spaces();
    while (take_newline());
    return true;
  }

  // Reads an escape sequence whose backslash has been read.
  void escape(std::string& text) {
    constexpr std::string_view names = "btnfr\"\\", meanings = "\b\t\n\f\r\"\\";
    const std::size_t which = done() ? std::string_view::npos : names.find(peek());
    if (which != std::string_view::npos) {
      ++at_;
      text += meanings[which];
      return;
    }
    const int digits = peek() == 'u' ? 4 : peek() == 'U' ? 8 : 0;
    if (digits == 0)
      fail(fmt::format(
          "a backslash is followed by b, t, n, f, r, u, U, a quote or a backslash, but {}",
          found()));
    ++at_;
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const int digit = hex_digit(peek());
      if (digit < 0)
        fail(fmt::format("{} hexadecimal digits are expected, but {}", digits, found()));
      value = value << 4 | static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
      fail(fmt::format("U+{:04X} is no character", static_cast<std::uint32_t>(value)));
    append_utf8(text, value);
  }

  std::string_view text_, source_;
  std::size_t at_ = 0, counted_ = 0;
  Position now_;
  Table root_{Made::by_header};
};

}  // namespace

// Defined here, where the type of a table's entries is complete.
Table::Table(Made how) : made(how) {}
Table::~Table() = default;
Table::Table(const Table&) = default;
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(const Table&) = default;
Table& Table::operator=(Table&&) noexcept = default;

const Entry* Table::find(const std::string& key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? nullptr : &entries_[found->second];
}
Entry* Table::find(const std::string& key) {
  return const_cast<Entry*>(std::as_const(*this).find(key));
}
Entry& Table::add(Entry entry) {
  places_.emplace(entry.key, entries_.size());
  entries_.push_back(std::move(entry));
  return entries_.back();
}

std::string_view Value::kind() const {
  constexpr std::string_view kinds[] = {"true or false", "a whole number", "a whole number",
                                        "a number",      "a string",       "an array",
                                        "a table"};
  return kinds[data.index()];
}

Table parse(std::string_view text, std::string_view source) { return Parser(text, source).run(); }

std::string quoted(std::string_view text) {
  if (!is_utf8(text)) throw ValueError("TOML holds UTF-8 alone, but the text has other bytes");
  constexpr std::string_view named = "\b\t\n\f\r\"\\", names = "btnfr\"\\";
  std::string result = "\"";
  for (const char c : text) {
    const std::size_t which = named.find(c);
    if (which != std::string_view::npos)
      result += '\\', result += names[which];
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      result += fmt::format("\\u{:04X}", c);
    else
      result += c;
  }
  return result + '"';
}

std::string key(std::string_view name) {
  const bool bare = !name.empty() && std::all_of(name.begin(), name.end(), is_bare);
  return bare ? std::string(name) : quoted(name);
}

}  // namespace ebb::toml
