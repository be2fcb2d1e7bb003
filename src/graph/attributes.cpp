#include "ebb/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ebb/error.h"

namespace ebb {

void AttributePrinter::add(std::string_view field, const std::string& value) {
  text_ += fmt::format("{}{}={}", text_.empty() ? "" : ", ", field, value);
}
void AttributePrinter::operator()(std::string_view field, bool value) {
  add(field, value ? "true" : "false");
}
void AttributePrinter::operator()(std::string_view field, double value) {
  add(field, fmt::format("{}", value));
}
void AttributePrinter::operator()(std::string_view field, const IntList& value) {
  add(field, to_string(value));
}
void AttributePrinter::operator()(std::string_view field, const std::vector<std::int64_t>& value) {
  add(field, fmt::format("[{}]", fmt::join(value, ", ")));
}

void AttributeFields::operator()(std::string_view field, int& value) {
  std::int64_t wide = value;
  (*this)(field, wide);
  if (!std::in_range<int>(wide))
    throw ValueError(fmt::format("{} is {}, which is no 32-bit number", field, wide));
  value = static_cast<int>(wide);
}

std::size_t AttributeFields::choose(std::string_view field, std::size_t value,
                                    std::span<const std::string_view> names) {
  std::string chosen(names[value]);
  (*this)(field, chosen);
  const auto found = std::find(names.begin(), names.end(), chosen);
  if (found == names.end())
    throw ValueError(
        fmt::format("{} is \"{}\", but must be one of {}", field, chosen, fmt::join(names, ", ")));
  return static_cast<std::size_t>(found - names.begin());
}

namespace {

// Prints fields; for lists, only their length.
class FieldsText final : public AttributeFields {
 public:
  void operator()(std::string_view field, bool& value) override { add(field, value); }
  void operator()(std::string_view field, std::int64_t& value) override { add(field, value); }
  void operator()(std::string_view field, std::uint64_t& value) override { add(field, value); }
  void operator()(std::string_view field, double& value) override { add(field, value); }
  void operator()(std::string_view field, IntList& value) override { add(field, value); }
  void operator()(std::string_view field, std::vector<std::int64_t>& value) override {
    add(field, value);
  }
  void operator()(std::string_view field, DType& value) override { add(field, value); }
  void operator()(std::string_view field, std::string& value) override { add(field, value); }
  std::size_t begin_list(std::string_view field, std::size_t size) override {
    add(field, size);
    ++depth_;
    return size;
  }
  void begin_item() override {}
  void end_item() override {}
  void end_list() override { --depth_; }

  const std::string& text() const { return printer_.text(); }

 private:
  template <class T>
  void add(std::string_view field, const T& value) {
    if (depth_ == 0) printer_(field, value);
  }
  AttributePrinter printer_;
  int depth_ = 0;  // lists that are open
};

}  // namespace

std::string Attributes::text() const {
  FieldsText fields;
  visit(fields);
  return fields.text();
}

void Attributes::wrong_type(const std::type_info& held, const std::type_info& asked) {
  throw Error(fmt::format("attributes of type {} were read as {}", held.name(), asked.name()));
}

}  // namespace ebb
