#include "prune/classes.h"

#include <algorithm>

namespace ebb::prune {

Label Classes::fresh() {
  const Label label = static_cast<Label>(parent_.size());
  parent_.push_back(label);
  traits_.push_back(0);
  return label;
}

AxisLabels Classes::fresh_axis(std::int64_t size) {
  AxisLabels axis(static_cast<std::size_t>(size));
  for (Label& label : axis) label = fresh();
  return axis;
}

Label Classes::find(Label label) {
  while (parent_[static_cast<std::size_t>(label)] != label) {
    Label& up = parent_[static_cast<std::size_t>(label)];
    up = parent_[static_cast<std::size_t>(up)];
    label = up;
  }
  return label;
}

// The smaller root stays: `fixed`, which is 0, remains a root, and a class keeps its first label.
void Classes::tie(Label a, Label b) {
  a = find(a), b = find(b);
  if (a == b) return;
  const auto [low, high] = std::minmax(a, b);
  parent_[static_cast<std::size_t>(high)] = low;
  traits_[static_cast<std::size_t>(low)] |= traits_[static_cast<std::size_t>(high)];
}

void Classes::tie(std::span<const Label> a, std::span<const Label> b) {
  if (a.empty()) return fix(b);
  if (b.empty()) return fix(a);
  for (std::size_t i = 0; i < a.size(); ++i) tie(a[i], b[i]);
}

void Classes::fix(std::span<const Label> axis) {
  for (const Label label : axis) tie(fixed, label);
}

void Classes::mark(std::span<const Label> axis, Trait trait) {
  for (const Label label : axis) traits_[static_cast<std::size_t>(find(label))] |= trait;
}

}  // namespace ebb::prune
