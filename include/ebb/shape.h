// Shapes, strides and axis lists: short lists of integers kept inline, so copying one never
// allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace ebb {

inline constexpr int max_rank = 8;

// Up to max_rank integers. Negative positions are not wrapped here: see `wrap_axis`.
class IntList {
 public:
  IntList() = default;
  IntList(std::initializer_list<std::int64_t> values)
      : IntList(std::span(values.begin(), values.size())) {}
  explicit IntList(std::span<const std::int64_t> values);
  static IntList filled(int count, std::int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t back() const { return values_[static_cast<std::size_t>(size_ - 1)]; }

  void push_back(std::int64_t value);
  void insert(int position, std::int64_t value);
  void erase(int position);
  bool contains(std::int64_t value) const { return std::find(begin(), end(), value) != end(); }

  friend bool operator==(const IntList& a, const IntList& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<std::int64_t, max_rank> values_{};
  int size_ = 0;
};

using Strides = IntList;  // in elements, not bytes
using Axes = IntList;

class Shape : public IntList {
 public:
  using IntList::IntList;
  Shape() = default;
  Shape(const IntList& list) : IntList(list) {}

  int rank() const { return size(); }
  std::int64_t elements() const;  // product of all sizes; 1 for a scalar
};

std::string to_string(const IntList& list);  // "(2, 3)"

Strides contiguous_strides(const Shape& shape);
bool is_contiguous(const Shape& shape, const Strides& strides);

// NumPy's rule. Returns false when the two do not broadcast; `result` is then unspecified.
bool broadcast(const Shape& a, const Shape& b, Shape& result);

}  // namespace ebb
