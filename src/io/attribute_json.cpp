#include "io/attribute_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ebb/error.h"

namespace ebb::io {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

class Writer final : public AttributeFields {
 public:
  void operator()(std::string_view field, bool& value) override { add(field, value); }
  void operator()(std::string_view field, std::int64_t& value) override { add(field, value); }
  void operator()(std::string_view field, std::uint64_t& value) override { add(field, value); }
  void operator()(std::string_view field, double& value) override {
    std::isfinite(value) ? add(field, value) : add(field, fmt::format("{}", value));
  }
  void operator()(std::string_view field, IntList& value) override {
    add(field, std::vector<std::int64_t>(value.begin(), value.end()));
  }
  void operator()(std::string_view field, std::vector<std::int64_t>& value) override {
    add(field, value);
  }
  void operator()(std::string_view field, DType& value) override { add(field, name(value)); }
  void operator()(std::string_view field, std::string& value) override { add(field, value); }

  std::size_t begin_list(std::string_view field, std::size_t size) override {
    open_.push_back(&(here()[std::string(field)] = OrderedJson::array()));
    open_.back()->get_ref<OrderedJson::array_t&>().reserve(size);  // addresses of items stay good
    return size;
  }
  void begin_item() override {
    open_.back()->push_back(OrderedJson::object());
    open_.push_back(&open_.back()->back());
  }
  void end_item() override { open_.pop_back(); }
  void end_list() override { open_.pop_back(); }

  OrderedJson take() { return std::move(object_); }

 private:
  OrderedJson& here() { return open_.empty() ? object_ : *open_.back(); }
  template <class T>
  void add(std::string_view field, const T& value) {
    here()[std::string(field)] = value;
  }

  OrderedJson object_ = OrderedJson::object();
  std::vector<OrderedJson*> open_;  // lists and their items, the innermost last
};

class Reader final : public AttributeFields {
 public:
  explicit Reader(const Json& object) { enter(object); }

  void operator()(std::string_view field, bool& value) override {
    value = get<bool>(field, &Json::is_boolean, "true or false");
  }
  void operator()(std::string_view field, std::int64_t& value) override {
    const Json& json = find(field);
    if (!json.is_number_integer() ||
        (json.is_number_unsigned() &&
         json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()))
      fail(field, "a whole number", json);
    value = json.get<std::int64_t>();
  }
  void operator()(std::string_view field, std::uint64_t& value) override {
    value = get<std::uint64_t>(field, &Json::is_number_unsigned, "a whole number from 0 on");
  }
  void operator()(std::string_view field, double& value) override {
    const Json& json = find(field);
    if (json == "inf")
      value = std::numeric_limits<double>::infinity();
    else if (json == "-inf")
      value = -std::numeric_limits<double>::infinity();
    else if (json == "nan")
      value = std::numeric_limits<double>::quiet_NaN();
    else if (json.is_number())
      value = json.get<double>();
    else
      fail(field, "a number", json);
  }
  void operator()(std::string_view field, IntList& value) override {
    std::vector<std::int64_t> list;
    (*this)(field, list);
    if (list.size() > max_rank)
      throw ValueError(fmt::format("{} has {} numbers, but at most {} are possible", field,
                                   list.size(), max_rank));
    value = IntList(std::span<const std::int64_t>(list));
  }
  void operator()(std::string_view field, std::vector<std::int64_t>& value) override {
    const Json& json = find(field);
    if (!json.is_array()) fail(field, "a list of whole numbers", json);
    value.clear();
    for (const Json& item : json) {
      if (!item.is_number_integer()) fail(field, "a list of whole numbers", json);
      value.push_back(item.get<std::int64_t>());
    }
  }
  void operator()(std::string_view field, DType& value) override {
    value = parse_dtype(get<std::string>(field, &Json::is_string, "a dtype"));
  }
  void operator()(std::string_view field, std::string& value) override {
    value = get<std::string>(field, &Json::is_string, "a text");
  }

  std::size_t begin_list(std::string_view field, std::size_t) override {
    const Json& json = find(field);
    if (!json.is_array()) fail(field, "a list", json);
    lists_.push_back({&json, 0});
    return json.size();
  }
  void begin_item() override {
    auto& [list, next] = lists_.back();
    enter((*list)[next++]);
  }
  void end_item() override { leave(); }
  void end_list() override { lists_.pop_back(); }

  // Every field of the object must have been asked for.
  void leave() {
    const auto& [object, read] = objects_.back();
    if (read != object->size())
      throw ValueError(
          fmt::format("{} has fields that do not belong there", json_excerpt(*object)));
    objects_.pop_back();
  }

 private:
  void enter(const Json& object) {
    if (!object.is_object())
      throw ValueError(fmt::format("expected an object, but found {}", json_excerpt(object)));
    objects_.push_back({&object, 0});
  }

  const Json& find(std::string_view field) {
    auto& [object, read] = objects_.back();
    const auto found = object->find(std::string(field));
    if (found == object->end()) throw ValueError(fmt::format("{} is missing", field));
    ++read;
    return *found;
  }

  template <class T>
  T get(std::string_view field, bool (Json::*is)() const noexcept, const char* expected) {
    const Json& json = find(field);
    if (!(json.*is)()) fail(field, expected, json);
    return json.get<T>();
  }

  [[noreturn]] static void fail(std::string_view field, const char* expected, const Json& found) {
    throw ValueError(fmt::format("{} must be {}, but is {}", field, expected, json_excerpt(found)));
  }

  struct Open {
    const Json* value;
    std::size_t next;  // of an object: how many fields have been read
  };
  std::vector<Open> objects_, lists_;
};

}  // namespace

OrderedJson attributes_json(const Attributes& attributes) {
  Writer writer;
  attributes.visit(writer);
  return writer.take();
}

Attributes attributes_from_json(const Op& op, const Json& object) {
  Reader reader(object);
  Attributes attributes = op.read_attributes(reader);
  reader.leave();
  return attributes;
}

}  // namespace ebb::io
