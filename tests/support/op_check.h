// Checks what every op must satisfy, from one description. An op's test file lists samples; each
// sample is a function of tensors with inputs for it. The checks are gradients of first and second
// order in float64, agreement with the reference, agreement between dtypes, and bit-for-bit
// repetition.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/graph.h"
#include "ebb/node.h"
#include "ebb/op.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/threads.h"
#include "ebb/variable.h"

namespace ebb::test {

// How an input of a sample is filled.
struct SampleInput {
  Shape shape;
  DType dtype = f64;  // float64 stands for "the dtype under test"
  double low = -1.5, high = 1.5;
  bool differentiable = true;
  std::vector<double> values = {};  // instead of random numbers

  static SampleInput real(Shape shape, double low = -1.5, double high = 1.5) {
    return {shape, f64, low, high, true, {}};
  }
  // Given values that are not differentiated.
  static SampleInput fixed(Shape shape, double low, double high) {
    return {shape, f64, low, high, false, {}};
  }
  static SampleInput index(Shape shape, std::int64_t limit, DType dtype = i64) {
    return {shape, dtype, 0.0, static_cast<double>(limit), false, {}};
  }
  static SampleInput boolean(Shape shape) { return {shape, b8, 0.0, 2.0, false, {}}; }
};

struct Sample {
  std::string name;
  std::vector<SampleInput> inputs;
  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> function;

  // Relative error allowed in each order of gradient against central differences in float64:
  // truncation leaves about 1e-9 of the value, rounding of differences about as much.
  double tolerance = 1e-6;
  // Half types carry 8 (bfloat16) or 11 bits; errors grow with the length of sums inside the op.
  double half_tolerance_factor = 4.0;
  bool second_order = true;
  bool low_precision = true;  // whether float32 and half kernels are compared with float64's
  // Error allowed in float32, in units of 2⁻²³: sums inside ops lose a few bits.
  double float_tolerance_factor = 64.0;
};

// Which checks run: all, or only those that need a CUDA device (--only-cuda), if the others have
// been run on another machine.
enum class Checks { all, cuda };
Checks& checks();

// Runs every check on a sample; failures are GoogleTest failures that name it.
void check(const Sample& sample);

// Only the checks of a sample on a CUDA device, for sizes for which the CPU's checks would take too
// long. Without a device the sample is only planned for one.
void check_cuda(const Sample& sample);

// The ops in the graphs of samples checked so far, for the test that every op has a sample.
const std::vector<const Op*>& checked_ops();

// Expects `use` to throw an ebb::Error whose message holds each of `parts`.
void expect_error(const std::function<void()>& use, const std::vector<std::string>& parts);

// Values as doubles, whatever the dtype.
std::vector<double> values_of(const Tensor& tensor);

// Fills a tensor of the sample's type with reproducible numbers.
Tensor make_input(const SampleInput& input, DType dtype_under_test, std::uint64_t seed);

}  // namespace ebb::test
