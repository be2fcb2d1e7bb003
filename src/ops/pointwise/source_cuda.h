// The CUDA source of a pointwise program. Shapes, strides and numbers are parameters of the kernel,
// so that programs which differ only in those share one source.
#pragma once

#include <string>
#include <vector>

#include "ops/pointwise/pointwise.h"

namespace ebb {

inline constexpr int max_cuda_inputs = 16, max_cuda_numbers = 32;

// Declarations for the host that are also passed to NVRTC as text.
#define EBB_BOTH(text_name, ...) __VA_ARGS__ inline constexpr char text_name[] = #__VA_ARGS__ "\n";

// Strides are in elements per step of an axis, where a step along the last one is a group.
// clang-format off
EBB_BOTH(pointwise_parameters_text,
struct PointwiseNumbers {
  double a;
  double b;
  unsigned long long key;
};
struct PointwiseRandom {
  unsigned long long seed;
  unsigned long long step;
};
struct PointwiseParameters {
  void* out;
  const void* in[16];
  const PointwiseRandom* random;
  unsigned long long count;
  unsigned long long groups;
  unsigned long long extent[8];
  long long stride[16][8];
  PointwiseNumbers numbers[32];
};
)
// clang-format on
#undef EBB_BOTH

// How a kernel accesses its operands. A thread processes a group of `width` neighbouring elements
// of the output, whose axes were merged to `rank` axes.
struct PointwiseAccess {
  enum class Kind : std::uint8_t {
    scalar,  // one element for all
    same,    // one element for a group
    pack,    // the group's own neighbouring elements
    single,  // an element for each, groups being of one element
  };
  std::vector<Kind> inputs;
  int rank = 1;
  int width = 1;
  bool wide_index = false;  // more elements than 32 bits can count
};

// Defines the kernel `pointwise`, which takes PointwiseParameters.
std::string pointwise_source(const FusedAttributes& program, const PointwiseAccess& access);

// Parts of sources, for kernels that process a program's results further.

// The type of elements in memory, and of values in registers.
std::string_view stored_type(DType dtype);
std::string_view computed_type(DType dtype);

// Defines PointwiseParameters, how elements are moved and converted, the type `Index`, and
//
//   Out evaluate(p, random, index, inputs...)
//
// the program on one element; results of half types are not yet rounded.
std::string pointwise_functions(const FusedAttributes& program, const PointwiseAccess& access);

// Statements that give `random` its value, and at0, at1, ..., the places in the inputs of group
// `rest`, theirs.
std::string random_state(const FusedAttributes& program);
std::string operand_places(const PointwiseAccess& access);

}  // namespace ebb
