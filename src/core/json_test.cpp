#include "core/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Json, NestingIsBounded) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_NO_THROW((void)parse_json(nested(max_json_depth)));
  expect_error([&] { (void)parse_json(nested(max_json_depth + 1)); }, {"nested", "64"});
  expect_error([&] { (void)parse_json(nested(1'000'000)); }, {"nested", "64"});
}

TEST(Json, RepeatedKeysAreErrors) {
  EXPECT_NO_THROW((void)parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":1}]})"));
  expect_error([] { (void)parse_json(R"({"b":{"a":1,"a":2}})"); }, {"\"a\"", "twice"});
  expect_error([] { (void)parse_ordered_json(R"({"a":1,"a":2})"); }, {"\"a\"", "twice"});
}

TEST(Json, MessagesAreShort) {
  expect_error([] { (void)parse_json("nothing"); }, {"not JSON"});
  try {
    (void)parse_json("\"" + std::string(1 << 20, 'x'));
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_LT(std::string_view(e.what()).size(), 300u);
  }
  EXPECT_LT(json_excerpt(std::string(1 << 20, 'x')).size(), 120u);
  // Cut between characters, never within one.
  std::string wide = "x";
  for (int i = 0; i < 200; ++i) wide += "é";
  const std::string excerpt = json_excerpt(wide);
  EXPECT_EQ(parse_json(json_text(nlohmann::json(excerpt))).get<std::string>(), excerpt);
}

TEST(Json, AnyBytesCanBeWritten) {
  EXPECT_EQ(json_text(nlohmann::json{{"a\xff", "\xe9t\xc3\xa9"}}),
            "{\"a\xef\xbf\xbd\":\"\xef\xbf\xbdt\xc3\xa9\"}");
  EXPECT_EQ(json_text(nlohmann::ordered_json{{"b", 1}, {"a", 18446744073709551615u}}),
            R"({"b":1,"a":18446744073709551615})");
}

}  // namespace
}  // namespace ebb::test
