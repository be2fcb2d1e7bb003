#include "passes/variants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/node.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

std::vector<Variant> variants_of(const Node& node) {
  if (!node.op().has_variants()) return {};
  return node.op().variants(types_of(node.inputs()), node.device(), node.attributes());
}

std::vector<std::string_view> names_of(const std::vector<Variant>& variants) {
  std::vector<std::string_view> names;
  for (const Variant& variant : variants) names.push_back(variant.name);
  return names;
}

}  // namespace

void check_names(const VariantChoice& choice) {
  std::vector<std::string_view> choosable;
  for (const Op* op : all_ops())
    if (op->has_variants()) choosable.push_back(op->name());
  for (const auto& [op, variant] : choice)
    if (std::ranges::find(choosable, op) == choosable.end())
      throw ValueError(
          fmt::format("a variant is chosen for \"{}\", but the ops with variants are {}", op,
                      fmt::join(choosable, ", ")));
}

std::map<std::string, std::vector<std::string>> variants_to_choose_from(const Graph& graph) {
  std::map<std::string, std::vector<std::string>> result;
  for (const auto& node : topological_order(graph)) {
    std::vector<std::string>& names = result[std::string(node->op().name())];
    for (const Variant& variant : variants_of(*node))
      if (variant.same_bits && std::ranges::find(names, variant.name) == names.end())
        names.emplace_back(variant.name);
  }
  std::erase_if(result, [](const auto& entry) { return entry.second.size() < 2; });
  return result;
}

Graph with_variants(const Graph& graph, const VariantChoice& choice) {
  if (choice.empty()) return graph;
  Rewriter rewriter;
  for (const auto& node : topological_order(graph)) {
    if (node->inputs().empty()) continue;
    const auto chosen = choice.find(std::string(node->op().name()));
    if (chosen == choice.end()) {
      rewriter.replace(*node, rewriter.copy(*node));
      continue;
    }
    const std::vector<Variant> variants = variants_of(*node);
    const auto variant = std::ranges::find(variants, chosen->second, &Variant::name);
    if (variant == variants.end())
      throw ValueError(fmt::format("\"{}\" is no variant of {} on {}, which has {}", chosen->second,
                                   chosen->first, to_string(node->device()),
                                   fmt::join(names_of(variants), ", ")));
    rewriter.replace(*node, rewriter.copy_as(*node, variant->attributes));
  }
  return rewriter.apply(graph);
}

}  // namespace ebb
