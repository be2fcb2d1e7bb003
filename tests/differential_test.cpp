// Compares ebb with PyTorch on thousands of small calls: values, first and second derivatives, and
// the errors that must occur. tests/golden/differential.json.gz is written by
// tools/make_differential.py, which describes the format.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <regex>
#include <set>

#include "data/gzip.h"
#include "support/golden_rows.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

const std::map<std::string, std::vector<Json>>& cases_by_row() {
  static const std::map<std::string, std::vector<Json>> cases = [] {
    data::GzipFile file(EBB_GOLDEN_FOLDER "/differential.json.gz");
    std::string text;
    // The file's length is not known before it is read, and nothing reads up to an end.
    for (std::byte c{}; !text.ends_with("\n]}\n");) {
      file.read(std::span(&c, 1));
      text.push_back(static_cast<char>(c));
    }
    std::map<std::string, std::vector<Json>> result;
    Json all = Json::parse(text);
    for (Json& json : all.at("cases"))
      result[json.at("op").get<std::string>()].push_back(std::move(json));
    return result;
  }();
  return cases;
}

// The allowed difference from PyTorch's number, as a share of the largest number of its tensor, or
// of 1/16 if that is more: inputs are around 1, and much smaller numbers are often differences.
//
// Float64 leaves 1e-16 per operation, and the file has 12 digits. Float32 has 6e-8 and the file 8
// digits; ebb's exponentials are within 2 units of the last place, and gradients multiply a few of
// those. Half types are rounded after every function, in ebb and in PyTorch, but not after the same
// ones: PyTorch's kernels of several functions round once, while those functions of ebb's that
// consist of other ops round between them. Eight roundings of half a unit each are allowed.
double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-10;
    case DType::float32:
      return 2e-6;
    case DType::float16:
      return 4 * 0x1p-10;
    case DType::bfloat16:
      return 4 * 0x1p-7;
    default:
      return 0.0;
  }
}

void compare(const std::vector<double>& actual, const Json& golden, double tolerance,
             const std::string& what) {
  const std::vector<double> expected = numbers(golden);
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 1.0 / 16;
  for (double v : expected) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0.0);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]))) continue;
    EXPECT_TRUE(std::abs(actual[i] - expected[i]) <= tolerance * largest)
        << what << ": element " << i << " is " << actual[i] << ", but PyTorch has " << expected[i];
  }
}

Tensor like(const Tensor& t, const Json& values) {
  return cast(Tensor::from(numbers(values), t.shape()), t.dtype());
}

// The coarsest dtype that takes part: halves are as precise as their coarsest input.
double tolerance_of(const Case& c, const Tensors& outputs) {
  double tolerance = 0.0;
  for (const Tensors& tensors : {c.inputs, outputs})
    for (const Tensor& t : tensors) tolerance = std::max(tolerance, tolerance_of(t.dtype()));
  return tolerance;
}

// A loss of half precision is float32 in ebb, which keeps the digits of its sum.
bool dtype_agrees(DType actual, DType expected) {
  return actual == expected || (is_half(expected) && actual == f32);
}

void compare_values(const Case& c, const Json& json, const Row& row) {
  const Tensors outputs = row(c);
  const Json& expected = json.at("outputs");
  ASSERT_EQ(outputs.size(), expected.size());
  const double tolerance = tolerance_of(c, outputs);
  Tensors wanted = outputs, wrt;
  std::vector<std::size_t> which;
  Tensor loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const DType dtype = parse_dtype(expected[i].at("dtype").get<std::string>());
    EXPECT_TRUE(dtype_agrees(outputs[i].dtype(), dtype))
        << "output " << i << " is " << name(outputs[i].dtype()) << ", but PyTorch's is "
        << name(dtype);
    ASSERT_EQ(outputs[i].shape(), Shape(int_list(expected[i].at("shape")))) << "output " << i;
    if (!expected[i].contains("weights")) continue;
    // Sums of halves in float32, so that they add no rounding of their own.
    const DType wide = outputs[i].dtype() == f64 ? f64 : f32;
    const Tensor part =
        sum(cast(outputs[i], wide) * cast(like(outputs[i], expected[i]["weights"]), wide));
    loss = loss ? loss + part : part;
  }
  if (loss && json.contains("grads")) {
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      if (!json["grads"][i].is_null()) wrt.push_back(c[i]), which.push_back(i);
    const Tensors gradients = grad(loss, wrt);
    wanted.insert(wanted.end(), gradients.begin(), gradients.end());
    if (json.contains("second")) {
      Tensor product;
      for (std::size_t k = 0; k < which.size(); ++k) {
        const Tensor part = sum(gradients[k] * like(wrt[k], json["vectors"][which[k]]));
        product = product ? product + part : part;
      }
      const Tensors second = grad(product, wrt);
      wanted.insert(wanted.end(), second.begin(), second.end());
    }
  }
  const Tensors found = eval(wanted);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    compare(values_of(found[i]), expected[i].at("values"), tolerance, fmt::format("output {}", i));
  for (std::size_t k = 0; k < which.size(); ++k) {
    compare(values_of(found[outputs.size() + k]), json["grads"][which[k]], tolerance,
            fmt::format("gradient in input {}", which[k]));
    if (json.contains("second"))
      compare(values_of(found[outputs.size() + which.size() + k]), json["second"][which[k]],
              tolerance, fmt::format("second derivative in input {}", which[k]));
  }
}

void expect_refused(const Case& c, const Json& json, const Row& row) {
  try {
    (void)eval(row(c));
    ADD_FAILURE() << "is computed, but should be an error: " << json.at("refused");
  } catch (const Error&) {
  }
}

class Differential : public testing::TestWithParam<std::string> {};

TEST_P(Differential, AgreesWithPyTorch) {
  const Row& row = golden_rows().at(GetParam());
  const auto found = cases_by_row().find(GetParam());
  if (found == cases_by_row().end()) return;  // EveryRowHasCases tells
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    const Json& json = found->second[i];
    std::string inputs;
    for (const Json& input : json.at("inputs"))
      inputs +=
          fmt::format(" {}{}", input.at("dtype").get<std::string>(), input.at("shape").dump());
    SCOPED_TRACE(fmt::format("case {}: {}{}", i, json.at("attributes").dump(), inputs));
    try {
      const Case c(json);
      json.contains("refused") ? expect_refused(c, json, row) : compare_values(c, json, row);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

std::vector<std::string> row_names() {
  std::vector<std::string> names;
  for (const auto& [name, row] : golden_rows()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Rows, Differential, testing::ValuesIn(row_names()),
                         [](const auto& row) { return row.param; });

// Rows that golden_test.cpp alone has cases of, since their one case is all there is.
const std::set<std::string> golden_only{"full",   "zeros",      "ones",      "arange",
                                        "conv2d", "max_pool2d", "avg_pool2d"};

TEST(DifferentialSuite, EveryRowHasCasesAndEveryCaseARow) {
  std::size_t total = 0;
  for (const auto& [name, cases] : cases_by_row()) {
    EXPECT_TRUE(golden_rows().contains(name)) << "cases of " << name << " have no row";
    total += cases.size();
  }
  for (const auto& [name, row] : golden_rows())
    EXPECT_NE(cases_by_row().contains(name), golden_only.contains(name)) << name;
  EXPECT_GT(total, 3000u);
}

// Functions of ops.h whose rows have another name, or none.
const std::map<std::string, std::string> elsewhere{
    {"full", "full_of"},
    {"zeros", "golden_test.cpp"},
    {"ones", "golden_test.cpp"},
    {"scalar_like", "full, of one element"},
    {"arange", "arange_of"},
    {"random_uniform", "numbers of ebb's own: core_test.cpp looks at their distribution"},
    {"random_normal", "the same"},
    {"dropout", "the same"},
    {"input", "every program's: no function of its inputs"},
    {"batch_norm", "batch_norm_training and batch_norm_inference"},
    {"conv2d", "conv2d_laid_out"},
    {"max_pool2d", "max_pool2d_laid_out"},
    {"avg_pool2d", "avg_pool2d_laid_out"},
};

TEST(DifferentialSuite, EveryFunctionOfOpsHasARow) {
  std::ifstream header(EBB_OPS_HEADER);
  ASSERT_TRUE(header) << EBB_OPS_HEADER;
  const std::regex function(R"(^(Tensor|std::vector<Tensor>|BatchNormResult) (\w+)\()");
  std::set<std::string> names;
  for (std::string line; std::getline(header, line);)
    if (std::smatch match; std::regex_search(line, match, function)) names.insert(match[2]);
  EXPECT_GT(names.size(), 80u);
  for (const std::string& name : names)
    EXPECT_TRUE(elsewhere.contains(name) || cases_by_row().contains(name))
        << name << " has no cases in tests/golden/differential.json.gz";
  for (const auto& [name, where] : elsewhere)
    EXPECT_TRUE(names.contains(name)) << name << " is no function of ops.h";
}

}  // namespace
}  // namespace ebb::test
