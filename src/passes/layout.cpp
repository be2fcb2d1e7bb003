#include "passes/layout.h"

#include <fmt/core.h>

#include "ebb/error.h"

namespace ebb {

void LayoutMap::add(const Tensor& tensor) {
  const Node& node = *tensor.node();
  std::vector<Entry>& entries = entries_[&node];
  if (!entries.empty()) return;  // all outputs of a node are added together
  for (std::size_t o = 0; o < node.outputs().size(); ++o) {
    const Tensor output(tensor.node(), static_cast<int>(o));
    if (!node.op().is_view()) {
      entries.push_back({output, {contiguous_strides(output.shape()), 0}});
      continue;
    }
    const Tensor& input = node.inputs()[0];
    const auto layout =
        node.op().view(input.type(), (*this)[input], static_cast<int>(o), node.attributes());
    if (!layout)
      throw Error(fmt::format("[{}] at \"{}\": a view that needs a copy reached the planner",
                              node.op().name(), node.path()));
    entries.push_back({root(input), *layout});
  }
}

const LayoutMap::Entry* LayoutMap::find(const Tensor& tensor) const {
  const auto found = entries_.find(tensor.node().get());
  return found == entries_.end() ? nullptr
                                 : &found->second[static_cast<std::size_t>(tensor.output())];
}

Layout LayoutMap::operator[](const Tensor& tensor) const {
  const Entry* entry = find(tensor);
  return entry ? entry->layout : Layout{contiguous_strides(tensor.shape()), 0};
}

Tensor LayoutMap::root(const Tensor& tensor) const {
  const Entry* entry = find(tensor);
  return entry ? entry->root : tensor;
}

}  // namespace ebb
