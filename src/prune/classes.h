// Classes of indices that must be removed together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ebb::prune {

using Label = std::int32_t;

// One label for each index of an axis. Empty: no index of the axis can be removed.
using AxisLabels = std::vector<Label>;

enum Trait : std::uint8_t {
  head_trait = 1,     // an attention head
  channel_trait = 2,  // a channel of a convolution
  normalised_trait =
      4,             // statistics are taken over this axis: removing an index changes the others
  summed_trait = 8,  // a product or convolution sums over it
};

// A union-find over labels.
class Classes {
 public:
  static constexpr Label fixed = 0;  // the class of indices that cannot be removed
  Classes() : parent_{fixed}, traits_{0} {}

  Label fresh();
  AxisLabels fresh_axis(std::int64_t size);

  Label find(Label label);
  void tie(Label a, Label b);
  // Ties two axes of the same size, index by index.
  void tie(std::span<const Label> a, std::span<const Label> b);
  void fix(std::span<const Label> axis);
  void mark(std::span<const Label> axis, Trait trait);
  std::uint8_t traits(Label label) { return traits_[static_cast<std::size_t>(find(label))]; }

 private:
  std::vector<Label> parent_;
  std::vector<std::uint8_t> traits_;  // of roots
};

}  // namespace ebb::prune
