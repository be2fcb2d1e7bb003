#include "ebb/print.h"

#include <fmt/core.h>

#include <ostream>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/program.h"

namespace ebb {
namespace {

constexpr std::int64_t most_computed = 1 << 20, most_whole = 64;  // elements
constexpr std::int64_t edge = 3;  // entries at either end of an axis

template <class T>
void append(const std::vector<T>& values, const Shape& shape, int axis, std::size_t at,
            std::string& text) {
  if (axis == shape.rank()) {
    if constexpr (std::is_same_v<T, double>)
      text += fmt::format("{:.6g}", values[at]);
    else
      text += fmt::format("{}", values[at]);
    return;
  }
  std::size_t stride = 1;
  for (int a = axis + 1; a < shape.rank(); ++a) stride *= static_cast<std::size_t>(shape[a]);
  const std::int64_t size = shape[axis];
  const bool elided = size > 2 * edge && shape.elements() > most_whole;
  text += '[';
  for (std::int64_t i = 0; i < size; ++i) {
    if (i > 0) text += ", ";
    if (elided && i == edge) {
      text += "..., ";
      i = size - edge;
    }
    append(values, shape, axis + 1, at + static_cast<std::size_t>(i) * stride, text);
  }
  text += ']';
}

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor) return "no tensor";
  std::string text = to_string(tensor.type());
  if (tensor.shape().elements() > most_computed) return text + " ...";
  try {
    std::string values;
    if (tensor.dtype() == i64)
      append(tensor.to_vector<std::int64_t>(), tensor.shape(), 0, 0, values);
    else
      append(eval(cast(tensor, f64)).to_vector<double>(), tensor.shape(), 0, 0, values);
    return text + " " + values;
  } catch (const Error&) {  // it depends on an input of a step, which has no value yet
    return text + " without a value";
  }
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << to_string(tensor);
}

}  // namespace ebb
