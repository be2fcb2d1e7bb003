// Calls of ops that golden files describe: a case with its tensors and attributes, and for each
// name of a case the function of ebb that computes it. tools/make_golden.py and
// tools/make_differential.py write the files and describe their formats.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ebb/ops.h"
#include "ebb/program.h"

namespace ebb::test {

using Json = nlohmann::json;
using Tensors = std::vector<Tensor>;

// A number; infinities and NaN are written as strings.
double number(const Json& value);
std::vector<double> numbers(const Json& values);
IntList int_list(const Json& values);

// A case as a row reads it: tensors, and attributes by name.
class Case {
 public:
  // Tensors in float64 are made in `float64_as`.
  explicit Case(const Json& json, DType float64_as = f64);

  const Tensor& operator[](std::size_t i) const { return inputs[i]; }
  Tensor optional(std::size_t i) const { return i < inputs.size() ? inputs[i] : Tensor{}; }
  bool has(const char* name) const { return attribute().contains(name); }
  double real(const char* name) const { return number(attribute().at(name)); }
  std::int64_t integer(const char* name) const { return attribute().at(name).get<std::int64_t>(); }
  int axis(const char* name = "axis") const { return attribute().at(name).get<int>(); }
  bool flag(const char* name) const { return attribute().at(name).get<bool>(); }
  std::string text(const char* name) const { return attribute().at(name).get<std::string>(); }
  IntList list(const char* name) const { return int_list(attribute().at(name)); }
  std::vector<std::int64_t> sizes(const char* name) const {
    return attribute().at(name).get<std::vector<std::int64_t>>();
  }
  Size2d size(const char* name) const { return {list(name)[0], list(name)[1]}; }
  DType dtype() const { return parse_dtype(text("dtype")); }
  ImageLayout layout() const {
    return text("layout") == "channels_last" ? ImageLayout::channels_last
                                             : ImageLayout::channels_first;
  }
  Reduction reduction() const {
    const std::string name = text("reduction");
    return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
  }
  Keep keep() const { return flag("keep") ? Keep::yes : Keep::no; }
  Transpose transposed(const char* name) const {
    return flag(name) ? Transpose::yes : Transpose::no;
  }

  Tensors inputs;

 private:
  const Json& attribute() const { return json_.at("attributes"); }
  const Json& json_;
};

using Row = std::function<Tensors(const Case&)>;

// Every op by the name that its cases have. dropout and the random generators have no row: their
// bits are ebb's own (core_test.cpp checks their distribution).
const std::map<std::string, Row>& golden_rows();

}  // namespace ebb::test
