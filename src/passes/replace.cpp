#include "ebb/replace.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/recompute.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

void check(const Replacements& replacements) {
  for (const auto& [leaf, value] : replacements) {
    if (!leaf || !value) throw ValueError("[replace] an empty tensor cannot be replaced");
    if (!leaf.node()->inputs().empty())
      throw ValueError(fmt::format(
          "[replace] only variables, inputs and constants are replaced, but a tensor at \"{}\" is "
          "computed by {}",
          leaf.path(), leaf.node()->op().name()));
    if (leaf.type() != value.type())
      throw ShapeError(fmt::format("[replace] \"{}\" is {}, but what replaces it is {}",
                                   leaf.path(), to_string(leaf.type()), to_string(value.type())));
  }
}

// Renumbers blocks and regions of copied nodes, so that copies share none with the originals.
class NewMarks {
 public:
  explicit NewMarks(const std::optional<Marks>& fixed) : fixed_(fixed) {}

  Marks operator()(Marks marks) {
    if (fixed_) return *fixed_;
    if (marks.checkpoint != 0) marks.checkpoint = renumbered(regions_, marks.checkpoint);
    // The highest bit is set because modules number their calls upwards from 1.
    if (marks.block != 0) marks.block = 0x80000000u | renumbered(blocks_, marks.block);
    return marks;
  }

 private:
  using Numbers = std::unordered_map<std::uint32_t, std::uint32_t>;
  static std::uint32_t renumbered(Numbers& numbers, std::uint32_t old) {
    const auto [found, missing] = numbers.try_emplace(old, 0);
    if (missing) found->second = in_region(Marks{}, {}).checkpoint;
    return found->second;
  }

  const std::optional<Marks>& fixed_;
  Numbers regions_, blocks_;
};

}  // namespace

std::vector<Tensor> replace(std::span<const Tensor> outputs, const Replacements& replacements,
                            const std::optional<Marks>& marks) {
  check(replacements);
  Graph graph;
  graph.outputs.assign(outputs.begin(), outputs.end());
  Rewriter rewriter;
  NewMarks new_marks(marks);
  for (const auto& node : topological_order(graph)) {
    if (node->inputs().empty()) {
      const auto found = replacements.find(Tensor(node, 0));
      if (found != replacements.end()) rewriter.replace(*node, {found->second});
      continue;
    }
    const bool changed = std::any_of(node->inputs().begin(), node->inputs().end(),
                                     [&](const Tensor& input) { return rewriter[input] != input; });
    if (!changed) continue;
    std::vector<Tensor> copies = rewriter.copy(*node);
    copies.front().node()->set_marks(new_marks(node->marks()));
    rewriter.replace(*node, std::move(copies));
  }
  return rewriter.apply(graph).outputs;
}

Tensor replace(const Tensor& output, const Replacements& replacements) {
  return replace(std::span(&output, 1), replacements).front();
}

}  // namespace ebb
