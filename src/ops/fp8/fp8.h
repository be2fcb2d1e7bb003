// Matrix products whose factors are rounded to 8-bit floating point. `fp8_product` is what model
// code and differentiation see: bfloat16 factors, a bfloat16 result. By itself it encodes its
// factors in the workspace. The pass `share_codes` replaces it by ops that make the codes and
// multiply them, so that a factor of several products is encoded once, and so that the factor that
// backward reads again is kept as codes.
//
// A factor x (rows, columns) is encoded as code(x / step) with one power of two, `step`, for the
// whole tensor. It follows from the largest magnitude in x, so a step that runs again makes the
// same codes. Products are sums over the last axis of both codes, the only order in which GPUs
// multiply them; codes of xᵀ are made by the same kernel that makes those of x.
#pragma once

#include <optional>
#include <string>

#include "ebb/op.h"
#include "ops/fp8/codec.h"
#include "ops/matmul/matmul.h"

namespace ebb {

inline constexpr std::string_view fp8_names[] = {"e4m3", "e5m2"};
// Each size of a product is a multiple of this many.
inline constexpr std::int64_t fp8_unit = 16;

// a · b, plus a bias, with both factors rounded. Gradients are rounded to e5m2 where the other
// factor is e4m3: no GPU multiplies e5m2 by e5m2.
struct Fp8ProductAttributes {
  MatmulAttributes product = {};
  Fp8 a = Fp8::e4m3, b = Fp8::e4m3;
  bool operator==(const Fp8ProductAttributes&) const = default;
  void visit(auto&& field) {
    product.visit(field);
    field.choice("a", a, fp8_names);
    field.choice("b", b, fp8_names);
  }
};

// The largest magnitudes in this many parts of a matrix; the largest of all is left to the readers.
inline constexpr std::int64_t fp8_parts = 256;
// The elements of one part, in row-major order: whole runs of 8, which are 16 bytes.
struct Fp8Part {
  std::int64_t first, last;
};
constexpr Fp8Part fp8_part(std::int64_t elements, std::int64_t part) {
  const std::int64_t runs = elements / 8;
  return {runs * part / fp8_parts * 8, runs * (part + 1) / fp8_parts * 8};
}

// Inputs: x (rows, columns), and its magnitudes (fp8_parts). Outputs: the codes of x or of xᵀ, or
// both in this order, and the step, a float32 scalar.
struct Fp8QuantiseAttributes {
  enum class Codes : std::uint8_t { plain, transposed, both };
  Fp8 format = Fp8::e4m3;
  Codes codes = Codes::plain;
  bool operator==(const Fp8QuantiseAttributes&) const = default;
  void visit(auto&& field) {
    static constexpr std::string_view names[] = {"plain", "transposed", "both"};
    field.choice("format", format, fp8_names);
    field.choice("codes", codes, names);
  }
  bool makes_plain() const { return codes != Codes::transposed; }
  bool makes_transposed() const { return codes != Codes::plain; }
  int step_output() const { return codes == Codes::both ? 2 : 1; }
};

// a (rows, inner) · b (columns, inner)ᵀ · both steps [+ bias] [+ another matrix], in bfloat16.
// Inputs: the codes of a and b, their steps, then the bias (columns), then the other matrix.
struct Fp8MatmulAttributes {
  Fp8 a = Fp8::e4m3, b = Fp8::e4m3;
  bool bias = false, added = false;
  bool operator==(const Fp8MatmulAttributes&) const = default;
  void visit(auto&& field) {
    field.choice("a", a, fp8_names);
    field.choice("b", b, fp8_names);
    field("bias", bias);
    field("added", added);
  }
  int inputs() const { return 4 + (bias ? 1 : 0) + (added ? 1 : 0); }
};

const Op& fp8_product_op();
const Op& fp8_amax_op();
const Op& fp8_quantise_op();
const Op& fp8_matmul_op();

// Why a product with these factors cannot be done in fp8, or nothing: each of its sizes must be a
// multiple of fp8_unit and both factors must be matrices.
std::optional<std::string> fp8_obstacle(const Shape& a, const Shape& b,
                                        const MatmulAttributes& product);

// A matrix of whole rows, which may lie apart.
bool accepts_fp8_rows(const Arg& arg);

Kernel bind_fp8_product_apart(const KernelRequest& request, const Fp8ProductAttributes& attributes);
Kernel bind_fp8_amax_cpu(const KernelRequest& request, const NoAttributes& attributes);
Kernel bind_fp8_amax_cuda(const KernelRequest& request, const NoAttributes& attributes);
Kernel bind_fp8_quantise_cpu(const KernelRequest& request, const Fp8QuantiseAttributes& attributes);
Kernel bind_fp8_quantise_cuda(const KernelRequest& request,
                              const Fp8QuantiseAttributes& attributes);
Kernel bind_fp8_matmul_cpu(const KernelRequest& request, const Fp8MatmulAttributes& attributes);
Kernel bind_fp8_matmul_cuda(const KernelRequest& request, const Fp8MatmulAttributes& attributes);

}  // namespace ebb
