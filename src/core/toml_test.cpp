#include "core/toml.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "ebb/error.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using toml::Table;
using toml::Value;

Table read(std::string_view text) { return toml::parse(text, "x.toml"); }

template <class T>
T value_of(std::string_view text) {
  const Table table = read("k = " + std::string(text));
  const T* value = table.find("k")->value.as<T>();
  if (!value) throw ValueError("of another kind: " + std::string(table.find("k")->value.kind()));
  return *value;
}

const Value& at(const Table& table, std::initializer_list<const char*> path) {
  const Table* inside = &table;
  const Value* value = nullptr;
  for (const char* key : path) {
    const toml::Entry* entry = inside->find(key);
    if (!entry) throw ValueError(std::string("no key ") + key);
    value = &entry->value;
    inside = value->as<Table>();
  }
  return *value;
}

void expect_bad(const std::string& text, const std::vector<std::string>& parts) {
  SCOPED_TRACE(text);
  expect_error([&] { read(text); }, parts);
}

TEST(Toml, WholeNumbers) {
  EXPECT_EQ(value_of<std::int64_t>("0"), 0);
  EXPECT_EQ(value_of<std::int64_t>("+1_000"), 1000);
  EXPECT_EQ(value_of<std::int64_t>("-0"), 0);
  EXPECT_EQ(value_of<std::int64_t>("-9223372036854775808"),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(value_of<std::uint64_t>("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(value_of<std::uint64_t>("0xFFFF_ffff_FFFF_ffff"), ~std::uint64_t{0});
  EXPECT_EQ(value_of<std::int64_t>("0o755"), 493);
  EXPECT_EQ(value_of<std::int64_t>("0b1_01"), 5);
  for (const char* bad : {"01", "1__0", "_1", "1_", "0x", "0x_1", "+0x1", "-0b1", "0o8", "0b2",
                          "0X1", "--1", "1-", "0xg", "00"})
    expect_bad(std::string("k = ") + bad, {"x.toml:1:5", bad});
  for (const char* large : {"18446744073709551616", "-9223372036854775809", "0x1_0000000000000000"})
    expect_bad(std::string("k = ") + large, {large, "64 bits"});
}

TEST(Toml, Numbers) {
  EXPECT_EQ(value_of<double>("1.0"), 1.0);
  EXPECT_EQ(value_of<double>("-0.5e-1_0"), -0.5e-10);
  EXPECT_EQ(value_of<double>("6_0.0_2E+23"), 60.02e23);
  EXPECT_EQ(value_of<double>("1e06"), 1e6);
  EXPECT_EQ(value_of<double>("5e-324"), std::numeric_limits<double>::denorm_min());
  EXPECT_TRUE(std::signbit(value_of<double>("-0.0")));
  EXPECT_EQ(value_of<double>("-inf"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(value_of<double>("+nan")));
  for (const char* bad : {"1.", ".1", "1.e5", "1e", "1e+", "1.2.3", "01.5", "1._0", "1_.0", "1e1.0",
                          "Inf", "NaN", "infinity"})
    expect_bad(std::string("k = ") + bad, {"x.toml:1:5"});
  expect_bad("k = 1e999", {"1e999", "64 bits"});
}

TEST(Toml, EveryDoubleReadsBack) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(value_of<double>(toml::number(value)), value) << toml::number(value);
  }
  for (const double value : {0.0, 1.0, 100.0, -3.0, 1e22, 1e-7, 0.1})
    EXPECT_EQ(value_of<double>(toml::number(value)), value) << toml::number(value);
}

TEST(Toml, Strings) {
  EXPECT_EQ(value_of<std::string>(R"("")"), "");
  EXPECT_EQ(value_of<std::string>(R"("a\b\t\n\f\r\"\\b")"), "a\b\t\n\f\r\"\\b");
  EXPECT_EQ(value_of<std::string>(R"("\u00e9\U0001F600 é")"), "é😀 é");
  EXPECT_EQ(value_of<std::string>(R"('C:\x "y"')"), R"(C:\x "y")");
  EXPECT_EQ(value_of<std::string>("\"\"\"\na\r\n  b\"\" c\\\n \n\t d\"\"\"\"\""),
            "a\n  b\"\" cd\"\"");
  EXPECT_EQ(value_of<std::string>("'''\n\\n'' '''"), "\\n'' ");
  EXPECT_EQ(value_of<std::string>("\"\"\"\"\"\""), "");
  expect_bad("k = \"a\nb\"", {"x.toml:1:7", "closing quote"});
  expect_bad("k = 'a", {"x.toml:1:7", "file ends"});
  expect_bad("k = \"\"\"a", {"closing quotes"});
  expect_bad(R"(k = "\x41")", {"x.toml:1:7", "backslash"});
  expect_bad(R"(k = "\u12")", {"4 hexadecimal digits"});
  expect_bad(R"(k = "\uD800")", {"U+D800"});
  expect_bad(R"(k = "\UFFFFFFFF")", {"no character"});
  expect_bad("k = \"a\x01\"", {"U+0001"});
  expect_bad("k = \"é\" x", {"x.toml:1:9", "\"x\" came"});  // columns are characters
  expect_bad("\n# \xff", {"x.toml:2:3", "UTF-8"});
}

TEST(Toml, EveryTextReadsBack) {
  std::string all;
  for (char c = 1; c < 127; ++c) all += c;
  for (const std::string& text : {all, std::string("\0\x7f", 2), std::string("né\u2028😀"),
                                  std::string("'''\"\"\""), std::string("\\")}) {
    EXPECT_EQ(value_of<std::string>(toml::quoted(text)), text);
    const Table table = read(toml::key(text) + " = 1");
    EXPECT_NE(table.find(text), nullptr);
  }
  EXPECT_EQ(toml::key("lr-2_x"), "lr-2_x");
  EXPECT_EQ(toml::key(""), "\"\"");
  expect_error([] { toml::quoted("\xff"); }, {"UTF-8"});
}

TEST(Toml, TablesAndKeys) {
  const Table table = read(
      "\xEF\xBB\xBF# a comment\r\n"
      "a.b . \"c d\" = 1 # another\n"
      "a.'e' = [1, \"two\", [3.0], {x = 4, y.z = 5}, # in an array\n\n true,]\n"
      "\n"
      "[t.u]\n"
      "v = {}\n"
      "[t]\n"
      "1 = 2");
  EXPECT_EQ(*at(table, {"a", "b", "c d"}).as<std::int64_t>(), 1);
  const auto& list = *at(table, {"a", "e"}).as<std::vector<Value>>();
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(*list[1].as<std::string>(), "two");
  EXPECT_EQ(*at(*list[3].as<Table>(), {"y", "z"}).as<std::int64_t>(), 5);
  EXPECT_EQ(*list[4].as<bool>(), true);
  EXPECT_TRUE(at(table, {"t", "u", "v"}).as<Table>()->entries().empty());
  EXPECT_EQ(*at(table, {"t", "1"}).as<std::int64_t>(), 2);
  EXPECT_EQ(table.find("t")->at.line, 7);
  EXPECT_EQ(at(table, {"t", "1"}).at.line, 10);
  EXPECT_EQ(at(table, {"t", "1"}).at.column, 5);
  EXPECT_TRUE(read("").entries().empty());
}

TEST(Toml, KeysThatComeTwice) {
  for (const char* text : {"a = 1\na = 2", "a = 1\n'a' = 2", "a = 1\na.b = 2", "a.b = 1\na = 2",
                           "[a]\n[a]", "a.b = 1\n[a]", "a = {}\na.b = 1", "a = {}\n[a.b]",
                           "[a]\nb = 1\n[a.b]", "[a.b]\n[a]\nb.c = 1", "a = {b = 1, b = 2}"})
    expect_bad(text, {"comes twice"});
  EXPECT_NO_THROW(read("a.b = 1\na.c = 2\n[d.e]\n[d]\n[d.f]"));
  expect_bad("x = 1\n[a.b]\nc = 1\nc = 2", {"x.toml:4:1", "the key c", "line 3"});
}

TEST(Toml, WhatIsNotRead) {
  for (const char* date : {"1979-05-27", "1979-05-27T07:32:00Z", "07:32:00"})
    expect_bad(std::string("k = ") + date, {date, "date or a time"});
  expect_bad("[[a]]", {"arrays of tables"});
}

TEST(Toml, OtherErrors) {
  expect_bad("k", {"x.toml:1:2", "\"=\" is expected", "the file ends"});
  expect_bad("k = ", {"x.toml:1:5", "a value is expected"});
  expect_bad("= 1", {"a key is expected"});
  expect_bad("k = abc", {"strings need quotes", "\"abc\""});
  expect_bad("k = 1 2", {"x.toml:1:7", "line should end"});
  expect_bad("[a", {"\"]\" is expected"});
  expect_bad("k = [1 2]", {"in the array"});
  expect_bad("k = {a = 1", {"in the table"});
  expect_bad("k = {a = 1,}", {"a key is expected"});
  expect_bad("a = 1\rb = 2", {"line should end"});
  expect_bad("# \x01", {"U+0001"});
  expect_bad("\"\"\"a\"\"\" = 1", {"multi-line"});
  expect_bad("k = True", {"True"});
}

TEST(Toml, NestingIsBounded) {
  const auto times = [](int count, const std::string& part) {
    std::string all;
    for (int i = 0; i < count; ++i) all += part;
    return all;
  };
  const int most = toml::max_depth;
  EXPECT_NO_THROW(read("k = " + times(most - 1, "[") + times(most - 1, "]")));
  for (const int depth : {most, 20'000}) {
    expect_bad("k = " + times(depth, "[") + times(depth, "]"), {"nested", "64"});
    expect_bad("k = " + times(depth, "{a="), {"nested", "64"});
    expect_bad(times(depth, "a.") + "a = 1", {"nested", "64"});
    expect_bad("[" + times(depth, "a.") + "a]", {"nested", "64"});
  }
}

}  // namespace
}  // namespace ebb::test
