#include "ops/pointwise/chain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <string_view>

namespace ebb::chain {
namespace {

typedef std::int32_t Mask __attribute__((vector_size(vector_bytes)));

Vector vector_at(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
Vector handed_on(Mask mask) { return std::bit_cast<Vector>(mask); }

// In each of these, `a` holds the vectors of a block. The call of the next link is the last thing a
// function does, so that an optimised build jumps there and keeps nothing on the stack.
template <class... V>
void load(const Link* link, const float* const* operands, std::int64_t at, float* out, V... a) {
  const float* x = operands[0] + at;
  ((a = vector_at(x), x += lanes), ...);
  return link[1].function(link + 1, operands + 1, at, out, a...);
}

template <class... V>
void store(const Link*, const float* const*, std::int64_t at, float* out, V... a) {
  out += at;
  ((std::memcpy(out, &a, sizeof a), out += lanes), ...);
}

template <auto F, class... V>
void alone(const Link* link, const float* const* operands, std::int64_t at, float* out, V... a) {
  ((a = F(a)), ...);
  return link[1].function(link + 1, operands, at, out, a...);
}

template <auto F, class... V>  // F(a, operand)
void before(const Link* link, const float* const* operands, std::int64_t at, float* out, V... a) {
  const float* x = operands[0] + at;
  ((a = F(a, vector_at(x)), x += lanes), ...);
  return link[1].function(link + 1, operands + 1, at, out, a...);
}

template <auto F, class... V>  // F(operand, a)
void after(const Link* link, const float* const* operands, std::int64_t at, float* out, V... a) {
  const float* x = operands[0] + at;
  ((a = F(vector_at(x), a), x += lanes), ...);
  return link[1].function(link + 1, operands + 1, at, out, a...);
}

template <auto F, class... V>  // F(a, operand, operand)
void before_two(const Link* link, const float* const* operands, std::int64_t at, float* out,
                V... a) {
  const float *x = operands[0] + at, *y = operands[1] + at;
  ((a = F(a, vector_at(x), vector_at(y)), x += lanes, y += lanes), ...);
  return link[1].function(link + 1, operands + 2, at, out, a...);
}

enum class Part { any, start, taker };  // what a row may be in a chain

struct Entry {
  std::string_view row;
  std::array<Link::Function, 2> by_position;  // of the operand that is handed on
  Part part = Part::any;
};

template <auto F>
constexpr std::array<Link::Function, 2> one() {
  return {alone<F>, nullptr};
}
template <auto F>
constexpr std::array<Link::Function, 2> two() {
  return {before<F>, after<F>};
}

constexpr auto select = [](Vector condition, Vector a, Vector b) {
  return std::bit_cast<Mask>(condition) ? a : b;
};
constexpr auto clamp = [](Vector x, Vector low, Vector high) {
  const Vector lifted = (x < low) | (low != low) ? low : x;
  return (lifted > high) | (high != high) ? high : lifted;
};

// The functions of the rows in table.cpp, on vectors.
// clang-format off
constexpr Entry entries[] = {
  {"add", two<[](Vector a, Vector b) { return a + b; }>()},
  {"sub", two<[](Vector a, Vector b) { return a - b; }>()},
  {"mul", two<[](Vector a, Vector b) { return a * b; }>()},
  {"div", two<[](Vector a, Vector b) { return a / b; }>()},
  {"maximum", two<[](Vector a, Vector b) { return (a != a) | ((b == b) & (a > b)) ? a : b; }>()},
  {"minimum", two<[](Vector a, Vector b) { return (a != a) | ((b == b) & (a < b)) ? a : b; }>()},
  {"equal", two<[](Vector a, Vector b) { return handed_on(a == b); }>(), Part::start},
  {"not_equal", two<[](Vector a, Vector b) { return handed_on(a != b); }>(), Part::start},
  {"less", two<[](Vector a, Vector b) { return handed_on(a < b); }>(), Part::start},
  {"less_equal", two<[](Vector a, Vector b) { return handed_on(a <= b); }>(), Part::start},
  {"greater", two<[](Vector a, Vector b) { return handed_on(a > b); }>(), Part::start},
  {"greater_equal", two<[](Vector a, Vector b) { return handed_on(a >= b); }>(), Part::start},
  {"neg", one<[](Vector x) { return -x; }>()},
  {"reciprocal", one<[](Vector x) { return 1.0f / x; }>()},
  {"square", one<[](Vector x) { return x * x; }>()},
  {"abs", one<[](Vector x) { return (x > 0.0f) ? x : 0.0f - x; }>()},
  {"relu", one<[](Vector x) { return x < 0.0f ? Vector{} : x; }>()},
  {"where", {before_two<select>, nullptr}, Part::taker},
  {"clamp", {before_two<clamp>, nullptr}},
};
// clang-format on

const Entry* entry_of(const PointwiseRow& row) {
  const auto found = std::ranges::find(entries, row.name, &Entry::row);
  return found == std::end(entries) ? nullptr : found;
}

}  // namespace

Link starting_link(const PointwiseRow& row) {
  const Entry* entry = entry_of(row);
  return {entry && entry->part != Part::taker ? entry->by_position[0] : nullptr};
}

Link taking_link(const PointwiseRow& row, std::size_t position) {
  const Entry* entry = entry_of(row);
  if (!entry || entry->part == Part::start || position >= entry->by_position.size()) return {};
  return {entry->by_position[position]};
}

Link first_link() { return {load}; }
Link last_link() { return {store}; }

}  // namespace ebb::chain
