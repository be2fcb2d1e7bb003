// Compares ebb with PyTorch: outputs and gradients of every case in tests/golden, written by
// tools/make_golden.py, which describes the format.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "support/golden_rows.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

const std::map<std::string, Json>& golden_files() {
  static const std::map<std::string, Json> files = [] {
    std::map<std::string, Json> result;
    for (const auto& entry : std::filesystem::directory_iterator(EBB_GOLDEN_FOLDER))
      if (entry.path().extension() == ".json")
        result[entry.path().stem()] = Json::parse(std::ifstream(entry.path()));
    return result;
  }();
  return files;
}

// Float64 leaves about 1e-16 per operation; sums of tens of terms, and functions whose value is
// small beside their terms, still stay four digits under 1e-10. Float32 has 6e-8 and the same
// margin: a hundred roundings' worth.
double tolerance_of(DType dtype) { return dtype == f64 ? 1e-10 : 1e-5; }

// Compares with the golden results, relative to the tensor's largest number, or number by number if
// the case spans many orders of magnitude.
void compare(const Tensor& actual, const Json& golden, const char* field, bool spread,
             double tolerance, const std::string& what) {
  EXPECT_EQ(actual.shape(), Shape(int_list(golden.at("shape")))) << what;
  const std::vector<double> a = values_of(actual), b = numbers(golden.at(field));
  ASSERT_EQ(a.size(), b.size()) << what;
  double largest = 0.0;
  for (double v : b) largest = std::max(largest, std::isfinite(v) ? std::abs(v) : 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    // Below the smallest normal float32 digits fade.
    const double scale = spread ? std::max(std::abs(b[i]), 0x1p-126) : largest;
    EXPECT_TRUE(std::abs(a[i] - b[i]) <= tolerance * scale)
        << what << ": element " << i << " is " << a[i] << ", but PyTorch has " << b[i];
  }
}

void run(const Json& json, const Row& row, DType dtype) {
  const std::string what = fmt::format("{} in {}", json.at("name").get<std::string>(), name(dtype));
  SCOPED_TRACE(what);
  const Case c(json, dtype);
  const Tensors outputs = row(c);
  const Json& expected = json.at("outputs");
  ASSERT_EQ(outputs.size(), expected.size());
  const bool spread = json.contains("spread");
  Tensor loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const DType own = parse_dtype(expected[i].at("dtype").get<std::string>());
    if (!is_floating(own)) {
      EXPECT_EQ(outputs[i].dtype(), own);
    }
    compare(outputs[i], expected[i], "values", spread, tolerance_of(dtype),
            fmt::format("output {}", i));
    if (!expected[i].contains("weights")) continue;
    const Tensor weights =
        cast(Tensor::from(numbers(expected[i]["weights"]), outputs[i].shape()), outputs[i].dtype());
    const Tensor part = sum(outputs[i] * weights);
    loss = loss ? loss + part : part;
  }
  if (!loss) return;
  Tensors wrt;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < c.inputs.size(); ++i)
    if (json.at("inputs")[i].contains("grad")) wrt.push_back(c[i]), which.push_back(i);
  const Tensors gradients = eval(grad(loss, wrt));
  for (std::size_t k = 0; k < which.size(); ++k)
    compare(gradients[k], json["inputs"][which[k]], "grad", false, tolerance_of(dtype),
            fmt::format("gradient in input {}", which[k]));
}

TEST(Golden, EveryCaseAgreesWithPyTorch) {
  for (const auto& [family, file] : golden_files())
    for (const Json& json : file.at("cases")) {
      const auto row = golden_rows().find(json.at("op").get<std::string>());
      if (row == golden_rows().end()) continue;  // EveryCaseHasARow tells
      for (DType dtype : {f64, f32}) run(json, row->second, dtype);
    }
}

// differential_test.cpp checks that every row has a case.
TEST(Golden, EveryCaseHasARow) {
  std::set<std::string> names;
  for (const auto& [family, file] : golden_files())
    for (const Json& json : file.at("cases")) {
      const std::string op = json.at("op").get<std::string>();
      EXPECT_TRUE(names.insert(family + "/" + json.at("name").get<std::string>()).second)
          << "two cases are named " << json["name"];
      EXPECT_TRUE(golden_rows().contains(op))
          << family << ".json has a case of " << op << ", which is in no row";
    }
}

}  // namespace
}  // namespace ebb::test
