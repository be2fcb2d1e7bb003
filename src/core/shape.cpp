#include "ebb/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ebb/device.h"
#include "ebb/error.h"

namespace ebb {

IntList::IntList(std::span<const std::int64_t> values) {
  for (std::int64_t value : values) push_back(value);
}

IntList IntList::filled(int count, std::int64_t value) {
  IntList list;
  for (int i = 0; i < count; ++i) list.push_back(value);
  return list;
}

void IntList::push_back(std::int64_t value) { insert(size_, value); }

void IntList::insert(int position, std::int64_t value) {
  if (size_ == max_rank)
    throw ShapeError(fmt::format("a tensor has at most {} dimensions, and {} already has as many",
                                 max_rank, to_string(*this)));
  std::move_backward(begin() + position, end(), end() + 1);
  values_[static_cast<std::size_t>(position)] = value;
  ++size_;
}

void IntList::erase(int position) {
  std::move(begin() + position + 1, end(), begin() + position);
  --size_;
}

std::int64_t Shape::elements() const {
  // Elements have at most 8 bytes, so that no tensor's bytes overflow either.
  constexpr std::int64_t most = std::int64_t{1} << 59;
  if (contains(0)) return 0;
  std::int64_t product = 1;
  for (std::int64_t extent : *this)
    if (__builtin_mul_overflow(product, extent, &product) || product > most)
      throw ShapeError(fmt::format("a tensor has at most 2^59 elements, but the shape {} has more",
                                   to_string(*this)));
  return product;
}

std::string to_string(const IntList& list) {
  return fmt::format("({}{})", fmt::join(list, ", "), list.size() == 1 ? "," : "");
}

std::string to_string(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = IntList::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<std::int64_t>(shape[i + 1], 1);
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;  // the stride of a size-1 axis is never used
    if (strides[i] != expected) return shape.elements() == 0;
    expected *= shape[i];
  }
  return true;
}

bool broadcast(const Shape& a, const Shape& b, Shape& result) {
  const int rank = std::max(a.rank(), b.rank());
  result = IntList::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t x = i <= a.rank() ? a[a.rank() - i] : 1;
    const std::int64_t y = i <= b.rank() ? b[b.rank() - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    result[rank - i] = x == 1 ? y : x;
  }
  return true;
}

}  // namespace ebb
