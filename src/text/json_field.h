// A value of a tokenizer.json with its place, such as "pre_tokenizer.pretokenizers[1].pattern".
// Errors are ValueErrors that begin with the place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ebb::text {

class Field {
 public:
  Field(const nlohmann::json& value, std::string place)
      : value_(&value), place_(std::move(place)) {}

  const nlohmann::json& json() const { return *value_; }
  const std::string& place() const { return place_; }

  // A member of this object. `find` gives nothing for a missing member and for null.
  Field operator[](const char* name) const;
  std::optional<Field> find(const char* name) const;

  const std::string& text() const;
  bool flag() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  double real() const;
  std::vector<Field> items() const;  // of a list

  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name, const char* otherwise) const;

  // The member "type".
  const std::string& type() const { return (*this)["type"].text(); }

  // Refuses every member that is not named here, because it would be ignored.
  void allow_only(std::initializer_list<const char*> names) const;

  [[noreturn]] void fail(const std::string& what) const;
  // "must be ..., but is ...", with the value.
  [[noreturn]] void fail_expecting(const std::string& expected) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace ebb::text
