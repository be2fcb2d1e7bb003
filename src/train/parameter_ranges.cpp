#include "train/parameter_ranges.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ops/collective/collective.h"

namespace ebb {
namespace {

// The elements of a flattened parameter that this rank has.
struct OwnElements {
  std::int64_t range, begin, count;

  OwnElements(std::int64_t elements, const RankOptions& options)
      : range(range_elements(elements, options.count)),
        begin(std::min(elements, options.rank * range)),
        count(std::min(range, elements - begin)) {}
};

// This rank's range of an initial value, padded with zeros.
Tensor own_part(const Tensor& whole, const RankOptions& options) {
  const OwnElements own(whole.shape().elements(), options);
  const Shape shape = range_shape(whole.shape(), options);
  if (own.count == 0) return zeros(shape, whole.dtype(), whole.device());
  Tensor part =
      slice(reshape(whole, {whole.shape().elements()}), 0, own.begin, own.begin + own.count);
  if (own.count < own.range) part = pad(part, {0}, {own.range - own.count}, 0.0);
  return reshape(part, shape);
}

}  // namespace

Shape range_shape(const Shape& whole, const RankOptions& options) {
  Shape shape;
  for (int i = 1; i < whole.rank(); ++i) shape.push_back(1);
  shape.push_back(range_elements(whole.elements(), options.count));
  return shape;
}

ParameterRanges::ParameterRanges(const nn::ModuleBase& model, const RankOptions& options)
    : options_(options) {
  for (const nn::NamedVariable& p : model.parameters()) {
    if (p.packed) continue;
    const Variable& whole = p.variable;
    const Tensor& initial = whole.node()->initial();
    if (!initial && !whole.has_value())
      throw ValueError(fmt::format(
          "\"{}\" has no value: its ranges are the weights of another training step", p.path));
    const TraceScope scope(p.path);
    const Variable range(
        initial ? own_part(initial, options)
                : zeros(range_shape(whole.shape(), options), whole.dtype(), whole.device()));
    ranges_[whole] = range;
    whole_.push_back(p);
  }
}

Variable ParameterRanges::of(const nn::NamedVariable& parameter) const {
  const auto found = ranges_.find(parameter.variable);
  return found == ranges_.end() ? Variable{} : found->second;
}

void ParameterRanges::take_over() {
  for (const nn::NamedVariable& p : whole_) {
    Node& whole = *p.variable.node();
    if (whole.storage()) {
      Variable range = ranges_.at(p.variable);
      const OwnElements own(p.variable.shape().elements(), options_);
      const std::size_t size = static_cast<std::size_t>(size_of(p.variable.dtype()).count);
      std::vector<std::byte> all(static_cast<std::size_t>(p.variable.type().bytes().count)),
          part(static_cast<std::size_t>(range.type().bytes().count));
      whole.storage()->read(all);
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(size) * own.begin,
                  static_cast<std::ptrdiff_t>(size) * own.count, part.begin());
      range.assign_bytes(part);
    }
    whole.set_storage(nullptr);
    whole.set_initial({});
  }
}

}  // namespace ebb
