// TOML 1.0 as configuration files need it: everything except dates, times and arrays of tables,
// which are refused by name. Files are untrusted: nesting is bounded, and a repeated key is an
// error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

namespace ebb::toml {

inline constexpr int max_depth = 64;  // of tables and arrays inside each other

struct Position {
  int line = 1, column = 1;  // both from 1; columns count code points
};

struct Value;
struct Entry;

// Entries in the order of the file.
class Table {
 public:
  // How the table was defined, which decides what may still be added to it.
  enum class Made : std::uint8_t {
    on_the_way,  // by [a.b] for a: [a] may still come
    by_header,   // by [a]
    by_dots,     // by a.b = 1 for a: other dotted keys may add to it
    whole,       // by {...}: nothing may
  };
  Made made = Made::whole;
  explicit Table(Made how = Made::whole);
  ~Table();
  Table(const Table&);
  Table(Table&&) noexcept;
  Table& operator=(const Table&);
  Table& operator=(Table&&) noexcept;

  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(const std::string& key) const;
  Entry* find(const std::string& key);
  Entry& add(Entry entry);  // whose key is new

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> places_;  // in entries_, by key
};

struct Value {
  // Whole numbers are int64, those above its range up to 2^64 - 1 uint64.
  std::variant<bool, std::int64_t, std::uint64_t, double, std::string, std::vector<Value>, Table>
      data;
  Position at = {};

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  std::string_view kind() const;  // "a string", "a whole number"
};

struct Entry {
  std::string key;
  Position at;
  Value value;
};

// Throws a ValueError "SOURCE:LINE:COLUMN: what is wrong".
Table parse(std::string_view text, std::string_view source);

// How values and keys are written. A number is the shortest text that reads back as the same bits.
std::string quoted(std::string_view text);  // must be UTF-8
std::string number(double value);
std::string key(std::string_view name);  // quoted where it must be

}  // namespace ebb::toml
