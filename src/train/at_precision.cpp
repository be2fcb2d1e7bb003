#include "train/at_precision.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/ops.h"

namespace ebb {

AtPrecision::AtPrecision(Precision precision) {
  if (precision == Precision::fp32) return;
  half_.emplace(product_dtype(precision), precision == Precision::fp8
                                              ? HalfPrecision::BlockProducts::fp8
                                              : HalfPrecision::BlockProducts::half);
}

Tensor AtPrecision::operator()(const Tensor& value, DType dtype) {
  return half_ ? cast((*half_)({value})[0], dtype) : value;
}

void require_parameter_dtype(const std::vector<nn::NamedVariable>& parameters, Precision precision,
                             std::string_view who) {
  if (precision == Precision::fp32) return;
  const DType expected = parameter_dtype(precision);
  for (const nn::NamedVariable& p : parameters)
    if (p.variable.dtype() != expected)
      throw DTypeError(fmt::format("{}training in {} needs a model made in {}, but {} is {}", who,
                                   name(precision), name(expected), p.path,
                                   to_string(p.variable.type())));
}

}  // namespace ebb
