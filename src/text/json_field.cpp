#include "text/json_field.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ebb/error.h"

namespace ebb::text {

void Field::fail(const std::string& what) const {
  throw ValueError(fmt::format("{}: {}", place_.empty() ? "the file" : place_, what));
}

void Field::fail_expecting(const std::string& expected) const {
  fail(fmt::format("must be {}, but is {}", expected, json_excerpt(*value_)));
}

std::optional<Field> Field::find(const char* name) const {
  if (!value_->is_object()) fail_expecting("an object");
  const auto found = value_->find(name);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Field(*found, place_.empty() ? name : place_ + "." + name);
}

Field Field::operator[](const char* name) const {
  auto found = find(name);
  if (!found) fail(fmt::format("the field \"{}\" is missing", name));
  return *std::move(found);
}

const std::string& Field::text() const {
  if (!value_->is_string()) fail_expecting("a string");
  return value_->get_ref<const std::string&>();
}

bool Field::flag() const {
  if (!value_->is_boolean()) fail_expecting("true or false");
  return value_->get<bool>();
}

std::int64_t Field::integer(std::int64_t low, std::int64_t high) const {
  // Numbers above the range of int64 are stored unsigned, and would wrap.
  if (value_->is_number_integer() &&
      (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= std::uint64_t{INT64_MAX})) {
    const auto number = value_->get<std::int64_t>();
    if (number >= low && number <= high) return number;
  }
  fail_expecting(fmt::format("a whole number from {} to {}", low, high));
}

double Field::real() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) fail_expecting("a number");
  return value_->get<double>();
}

std::vector<Field> Field::items() const {
  if (!value_->is_array()) fail_expecting("a list");
  std::vector<Field> found;
  found.reserve(value_->size());
  for (const auto& item : *value_)
    found.emplace_back(item, fmt::format("{}[{}]", place_, found.size()));
  return found;
}

bool Field::flag(const char* name, bool otherwise) const {
  const auto found = find(name);
  return found ? found->flag() : otherwise;
}

std::string Field::text(const char* name, const char* otherwise) const {
  const auto found = find(name);
  return found ? found->text() : otherwise;
}

void Field::allow_only(std::initializer_list<const char*> names) const {
  if (!value_->is_object()) fail_expecting("an object");
  for (auto member = value_->begin(); member != value_->end(); ++member)
    if (std::none_of(names.begin(), names.end(),
                     [&](const char* known) { return member.key() == known; }))
      fail(fmt::format("the field {} is not supported", json_excerpt(member.key())));
}

}  // namespace ebb::text
