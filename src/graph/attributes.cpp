#include "ebb/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

void Attributes::wrong_type(const std::type_info& held, const std::type_info& asked) {
  throw Error(fmt::format("attributes of type {} were read as {}", held.name(), asked.name()));
}

}  // namespace ebb
