#include "ebb/nn/adapt.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ebb/error.h"

namespace ebb::nn {
namespace {

constexpr std::string_view usual_modules[] = {"q_proj",          "v_proj", "c_attn",
                                              "query_key_value", "query",  "value"};

constexpr std::string_view pairs_name = "2:4";

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// Layers that can have an adapter.
std::vector<Linear*> free_layers(ModuleBase& model) {
  std::vector<Linear*> result = linear_layers(model);
  std::erase_if(result, [](const Linear* layer) { return layer->stays_plain(); });
  return result;
}

std::string names_of(const std::vector<Linear*>& layers) {
  std::set<std::string_view> names;
  for (const Linear* layer : layers) names.insert(last_part(layer->path()));
  return fmt::format("{}", fmt::join(names, ", "));
}

void add_adapters(ModuleBase& model, const LoraOptions& lora,
                  const std::vector<std::string>& patterns) {
  const std::vector<Linear*> layers = free_layers(model);
  const auto add = [&](std::string_view pattern) {
    bool found = false;
    for (Linear* layer : layers) {
      if (!matches(pattern, layer->path())) continue;
      found = true;
      if (!layer->has_adapter()) layer->add_adapter(lora);
    }
    return found;
  };
  for (const std::string& pattern : patterns)
    if (!add(pattern))
      throw ValueError(
          fmt::format("adapters: no linear layer fits \"{}\"; the model's are named {}", pattern,
                      names_of(layers)));
  if (!patterns.empty()) return;
  bool found = false;
  for (const std::string_view name : usual_modules) found |= add(name);
  if (!found)
    throw ValueError(fmt::format(
        "adapters: name the modules that get one; the model's linear layers are named {}",
        names_of(layers)));
}

}  // namespace

bool matches(std::string_view pattern, std::string_view path) {
  if (pattern.find('*') == std::string_view::npos)
    return path == pattern || (path.size() > pattern.size() && path.ends_with(pattern) &&
                               path[path.size() - pattern.size() - 1] == '.');
  // Greedy with one way back: to the last star.
  std::size_t at = 0, in_pattern = 0, star = std::string_view::npos, star_at = 0;
  while (at < path.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++, star_at = at;
    } else if (in_pattern < pattern.size() && pattern[in_pattern] == path[at]) {
      ++in_pattern, ++at;
    } else if (star != std::string_view::npos) {
      in_pattern = star + 1, at = ++star_at;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string_view::npos;
}

std::vector<Linear*> linear_layers(ModuleBase& model) {
  std::vector<Linear*> result;
  for (ModuleBase* module : model.modules())
    if (auto* layer = dynamic_cast<Linear*>(module)) result.push_back(layer);
  return result;
}

std::vector<const Linear*> adapted_layers(const ModuleBase& model) {
  std::vector<const Linear*> result;
  for (const ModuleBase* module : model.modules())
    if (const auto* layer = dynamic_cast<const Linear*>(module); layer && layer->has_adapter())
      result.push_back(layer);
  return result;
}

bool has_packed_weights(const ModuleBase& model) {
  const std::vector<NamedVariable> parameters = model.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const NamedVariable& p) { return p.packed.has_value(); });
}

bool has_pairs(const ModuleBase& model) {
  const std::vector<NamedVariable> parameters = model.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const NamedVariable& p) { return p.pairs.has_value(); });
}

std::string_view name(const WeightForm& form) {
  const LowBits* bits = std::get_if<LowBits>(&form);
  return bits ? ebb::name(*bits) : pairs_name;
}

WeightForm weight_form_by_name(std::string_view name) {
  if (name == pairs_name) return Pairs{};
  for (const LowBits bits : {LowBits::int8, LowBits::int4, LowBits::nf4})
    if (name == ebb::name(bits)) return bits;
  throw ValueError(
      fmt::format("weights are stored as int8, int4, nf4 or 2:4, but \"{}\" came", name));
}

void pack_layers(ModuleBase& model, const WeightForm& form) {
  std::vector<Linear*> layers = free_layers(model);
  if (const LowBits* bits = std::get_if<LowBits>(&form)) {
    for (Linear* layer : layers) layer->pack_weight(*bits);
    return;
  }
  std::erase_if(layers, [](const Linear* layer) { return !layer->in_block(); });
  if (layers.empty())
    throw ValueError("the pattern 2:4 is of linear layers inside blocks, and the model has none");
  for (Linear* layer : layers) layer->pack_pairs();
}

void adapt(ModuleBase& model, const AdaptOptions& options) {
  if (!options.lora && !options.modules.empty())
    throw ValueError("adapters: modules are named, but there is no rank");
  model.freeze();
  if (options.lora) add_adapters(model, *options.lora, options.modules);
  if (options.base) pack_layers(model, *options.base);
}

std::vector<PlainParameter> merged_parameters(const ModuleBase& model) {
  std::map<std::string, const Linear*> changed;  // by the path of the weight
  std::set<std::string> added;
  for (const ModuleBase* module : model.modules()) {
    const auto* layer = dynamic_cast<const Linear*>(module);
    if (!layer || (!layer->has_adapter() && !layer->packed() && !layer->pairs())) continue;
    changed[layer->path() + ".weight"] = layer;
    if (!layer->has_adapter()) continue;
    for (const char* part : {".lora_A.weight", ".lora_B.weight"})
      added.insert(layer->path() + part);
  }
  std::vector<PlainParameter> result;
  for (const NamedVariable& p : model.parameters()) {
    if (added.contains(p.path)) continue;
    const auto found = changed.find(p.path);
    result.push_back(
        {p.path, found == changed.end() ? Tensor(p.variable) : found->second->merged_weight()});
  }
  return result;
}

}  // namespace ebb::nn
