#include "ebb/prune/models.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ebb/error.h"

namespace ebb::prune {
namespace {

std::string kinds_of(const Structure& s) {
  std::set<std::string_view> kinds;
  for (const Dimension& d : s.dimensions) kinds.insert(name(d.kind));
  if (std::any_of(s.blocks.begin(), s.blocks.end(), [](const Block& b) { return b.removable; }))
    kinds.insert("blocks");
  return kinds.empty() ? "nothing" : fmt::format("{}", fmt::join(kinds, ", "));
}

std::set<std::size_t> lowest_blocks(const Structure& s, const Scores& scores, double keep) {
  std::vector<std::size_t> candidates;
  std::vector<double> of_candidates;
  for (std::size_t b = 0; b < s.blocks.size(); ++b)
    if (s.blocks[b].removable) {
      candidates.push_back(b);
      of_candidates.push_back(scores.blocks.at(b));
    }
  if (candidates.empty())
    throw ValueError(
        fmt::format("prune: no block of the model can be removed: none ends with the sum of its "
                    "input and other "
                    "terms; removable are {}",
                    kinds_of(s)));
  const std::int64_t count = static_cast<std::int64_t>(candidates.size());
  std::set<std::size_t> result;
  for (const int i : lowest(of_candidates, count - kept_of(count, keep)))
    result.insert(candidates[static_cast<std::size_t>(i)]);
  return result;
}

// The first remaining block: its layers stand for those of all blocks.
std::string first_kept(const Structure& s, const Removal& removal) {
  for (std::size_t b = 0; b < s.blocks.size(); ++b)
    if (!removal.blocks.contains(b)) return s.blocks[b].path;
  throw ValueError("prune: at least one block must stay");
}

std::int64_t layers_left(std::int64_t layers, const Removal& removal) {
  return layers - static_cast<std::int64_t>(removal.blocks.size());
}

// The fields of a config.json that hold sizes, under each of their names.
nlohmann::json sizes_of(const models::Gpt2Config& c) {
  return {{"n_head", c.heads},
          {"num_attention_heads", c.heads},
          {"n_layer", c.layers},
          {"num_hidden_layers", c.layers},
          {"n_inner", c.hidden ? nlohmann::json(c.hidden) : nlohmann::json()},
          {"head_dim", c.head_size ? nlohmann::json(c.head_size) : nlohmann::json()}};
}
nlohmann::json sizes_of(const models::LlamaConfig& c) {
  nlohmann::json sizes{{"num_attention_heads", c.heads},
                       {"intermediate_size", c.hidden},
                       {"num_hidden_layers", c.layers}};
  if (c.family == models::DecoderFamily::gpt_neox) return sizes;
  sizes["num_key_value_heads"] = c.key_value_heads;
  sizes["head_dim"] = c.head_size ? c.head_size : c.width / c.heads;
  if (c.windowed.empty()) return sizes;
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t i = 0; i < c.layers; ++i)
    types.push_back(c.has_window(i, c.window + 1) ? "sliding_attention" : "full_attention");
  sizes["layer_types"] = std::move(types);
  return sizes;
}
nlohmann::json sizes_of(const models::BertConfig& c) {
  return {{c.family == models::EncoderFamily::distilbert ? "hidden_dim" : "intermediate_size",
           c.hidden}};
}

// Fields that every folder of the family needs, besides those it has already.
bool needed(const std::string& field, const nlohmann::json& value) {
  return !value.is_null() && field != "num_attention_heads" && field != "num_hidden_layers";
}

template <class Config>
models::Origin resized(models::Origin origin, const Config& config) {
  if (origin.config.empty()) return origin;
  nlohmann::json fields = nlohmann::json::parse(origin.config);
  const nlohmann::json sizes = sizes_of(config);
  for (const auto& [field, value] : sizes.items())
    if (fields.contains(field) || needed(field, value)) fields[field] = value;
  origin.config = fields.dump();
  return origin;
}

template <class Model>
void set_origin(const Model& dense, Model& smaller_model) {
  if constexpr (std::is_base_of_v<models::HasOrigin, Model>)
    smaller_model.set_origin(resized(dense.origin(), smaller_model.config()));
}

}  // namespace

StructuredOptions usual_structure(const nn::ModuleBase& model) {
  StructuredOptions options;
  const auto* llama = dynamic_cast<const models::Llama*>(&model);
  if (dynamic_cast<const models::BertClassifier*>(&model) ||
      dynamic_cast<const models::BertMaskedLm*>(&model)) {
    options.kinds = {Kind::neurons};
    options.under = "bert.encoder";  // pooler and heads have the model's width
  } else if (llama && llama->config().family == models::DecoderFamily::gpt_neox) {
    options.kinds = {Kind::neurons};
  } else if (dynamic_cast<const models::CausalLm*>(&model)) {
    options.kinds = {Kind::heads, Kind::neurons};
  }
  return options;
}

Removal choose(const Structure& s, const Scores& scores, const StructuredOptions& options) {
  Removal removal;
  removal.groups.resize(s.dimensions.size());
  for (const Kind kind : options.kinds)
    if (std::none_of(s.dimensions.begin(), s.dimensions.end(),
                     [&](const Dimension& d) { return d.kind == kind; }))
      throw ValueError(fmt::format("prune: the model has no {} that can be removed; it has {}",
                                   name(kind), kinds_of(s)));
  for (std::size_t d = 0; d < s.dimensions.size(); ++d) {
    const Dimension& dimension = s.dimensions[d];
    const bool all = options.kinds.empty() && !options.blocks;
    if (!all && !options.kinds.contains(dimension.kind)) continue;
    if (!dimension.path.starts_with(options.under)) continue;
    const std::int64_t size = static_cast<std::int64_t>(dimension.groups.size());
    const std::int64_t kept =
        kept_of(size, options.keep, dimension.kind == Kind::heads ? 1 : options.multiple);
    removal.groups[d] = lowest(scores.groups.at(d), size - kept);
  }
  if (options.blocks) removal.blocks = lowest_blocks(s, scores, options.keep);
  return removal;
}

Shape shape_without(const Structure& s, const Removal& removal, const std::string& path) {
  for (std::size_t v = 0; v < s.variables.size(); ++v) {
    if (s.variables[v].path != path) continue;
    Shape shape = s.variables[v].variable.shape();
    for (std::size_t d = 0; d < removal.groups.size(); ++d)
      for (const int g : removal.groups[d])
        for (const Part& part : s.dimensions[d].groups[static_cast<std::size_t>(g)].parts)
          if (part.variable == v)
            for (const Range& range : part.ranges) shape[part.axis] -= range.end - range.begin;
    return shape;
  }
  throw ValueError(fmt::format("prune: the model has no variable \"{}\"", path));
}

models::Gpt2Config smaller(const models::Gpt2Config& config, const Structure& s,
                           const Removal& removal) {
  if (!removal.blocks.empty() && config.scale_by_inverse_layer)
    throw ValueError(
        "prune: blocks of this model cannot be removed: scores of attention are divided by the "
        "block's number (scale_attn_by_inverse_layer_idx)");
  models::Gpt2Config c = config;
  const std::string block = first_kept(s, removal);
  c.layers = layers_left(c.layers, removal);
  c.hidden = shape_without(s, removal, block + ".mlp.c_fc.bias")[0];
  if (config.hidden == 0 && c.hidden == 4 * c.width) c.hidden = 0;
  c.heads = shape_without(s, removal, block + ".attn.c_proj.weight")[0] / config.size_of_head();
  if (c.heads != config.heads) c.head_size = config.size_of_head();
  return c;
}

models::LlamaConfig smaller(const models::LlamaConfig& config, const Structure& s,
                            const Removal& removal) {
  models::LlamaConfig c = config;
  const std::string block = first_kept(s, removal);
  const std::int64_t size = config.head_size ? config.head_size : config.width / config.heads;
  if (!config.windowed.empty()) {
    c.windowed.clear();
    for (std::size_t b = 0; b < config.windowed.size(); ++b)
      if (!removal.blocks.contains(b)) c.windowed.push_back(config.windowed[b]);
  }
  c.layers = layers_left(c.layers, removal);
  c.hidden = shape_without(s, removal, block + ".mlp.down_proj.weight")[1];
  c.heads = shape_without(s, removal, block + ".self_attn.q_proj.weight")[0] / size;
  c.key_value_heads = shape_without(s, removal, block + ".self_attn.k_proj.weight")[0] / size;
  c.head_size = size;
  if (c.family != models::DecoderFamily::gpt_neox) return c;
  if (c.heads != config.heads)
    throw ValueError(
        "prune: heads of a GPT-NeoX model cannot be removed: its config has no size of a head, so "
        "the heads must divide the width; --structure neurons removes neurons alone");
  c.head_size = config.head_size;
  return c;
}

models::LanguageModelConfig smaller(const models::LanguageModelConfig& config, const Structure& s,
                                    const Removal& removal) {
  models::LanguageModelConfig c = config;
  const std::string block = first_kept(s, removal);
  c.layers = layers_left(c.layers, removal);
  c.hidden = shape_without(s, removal, block + ".up.bias")[0];
  c.heads = shape_without(s, removal, block + ".attention.query.bias")[0] / config.head_size;
  return c;
}

models::BertConfig smaller(const models::BertConfig& config, const Structure& s,
                           const Removal& removal) {
  for (std::size_t d = 0; d < removal.groups.size(); ++d)
    if (s.dimensions[d].kind == Kind::heads && !removal.groups[d].empty())
      throw ValueError(
          "prune: heads of a BERT model cannot be removed: its config has no size of a head, so "
          "the "
          "heads must divide the width; --structure neurons removes neurons alone");
  models::BertConfig c = config;
  c.hidden = shape_without(s, removal, "bert.encoder.layer.0.intermediate.dense.bias")[0];
  return c;
}

models::MlpConfig smaller(const models::MlpConfig& config, const Structure& s,
                          const Removal& removal) {
  models::MlpConfig c = config;
  if (c.layers > 1) c.hidden = shape_without(s, removal, "layers.0.bias")[0];
  return c;
}

models::ResNetConfig smaller(const models::ResNetConfig& config, const Structure& s,
                             const Removal& removal) {
  if (!removal.blocks.empty())
    throw ValueError("prune: blocks of a ResNet are not removed; remove channels");
  models::ResNetConfig c = config;
  const auto outputs = [&](const std::string& conv) {
    return shape_without(s, removal, conv + ".conv.weight")[0];
  };
  c.pruned = {};
  c.pruned.stem = outputs("stem");
  const int inner = config.block == models::ResNetConfig::Block::basic ? 1 : 2;
  int block = 0;
  for (const int blocks : config.stages) {
    for (int i = 0; i < blocks; ++i, ++block) {
      std::vector<std::int64_t>& sizes = c.pruned.inner.emplace_back();
      for (int layer = 0; layer < inner; ++layer)
        sizes.push_back(outputs(fmt::format("blocks.{}.layers.{}", block, layer)));
    }
    c.pruned.outputs.push_back(outputs(fmt::format("blocks.{}.layers.{}", block - 1, inner)));
  }
  return c;
}

std::optional<std::string> refused_by_transformers(const models::Gpt2Config& c) {
  if (c.size_of_head() * c.heads == c.width) return std::nullopt;
  return fmt::format(
      "GPT-2's config in transformers has no size of a head: heads × size must be n_embd, but {} "
      "heads of {} remain and n_embd is {}; ebb reads the size from \"head_dim\"",
      c.heads, c.size_of_head(), c.width);
}

std::optional<std::string> refused_by_transformers(const models::LlamaConfig& c) {
  if (c.family != models::DecoderFamily::llama || c.width % c.heads == 0) return std::nullopt;
  return fmt::format(
      "transformers 5 refuses a hidden_size, here {}, that is not a multiple of "
      "num_attention_heads, here {}, although head_dim is given",
      c.width, c.heads);
}

std::optional<std::string> refused_by_transformers(const models::BertConfig&) {
  return std::nullopt;
}

template <class Model>
std::unique_ptr<Model> reshaped(const Model& dense, const Structure& s, const Removal& removal) {
  const auto config = smaller(dense.config(), s, removal);
  const nn::MakeScope scope(dense.device(), dense.dtype());
  auto model = std::make_unique<Model>(config);
  set_origin(dense, *model);
  return model;
}

template <class Model>
std::unique_ptr<Model> pruned(const Model& dense, const Structure& s, const Removal& removal,
                              Release release) {
  auto model = reshaped(dense, s, removal);
  copy_kept(s, removal, *model, release);
  return model;
}

#define EBB_PRUNED(Model)                                                                   \
  template std::unique_ptr<Model> reshaped(const Model&, const Structure&, const Removal&); \
  template std::unique_ptr<Model> pruned(const Model&, const Structure&, const Removal&, Release);
EBB_PRUNED(models::Gpt2)
EBB_PRUNED(models::Llama)
EBB_PRUNED(models::LanguageModel)
EBB_PRUNED(models::BertClassifier)
EBB_PRUNED(models::BertMaskedLm)
EBB_PRUNED(models::Mlp)
EBB_PRUNED(models::ResNet)
#undef EBB_PRUNED

}  // namespace ebb::prune
