// Freezes a model, packs the weights of its linear layers and gives some of them adapters. Call it
// before weights are loaded or computed: they are then packed one by one, and the model never
// exists at full size.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ebb/nn/layers.h"

namespace ebb::nn {

// The pattern 2:4 without its zeros (ebb/pairs.h), as the form of a weight.
struct Pairs {
  bool operator==(const Pairs&) const = default;
};
// How weights of linear layers are packed: in few bits, or without the zeros of their pattern.
using WeightForm = std::variant<LowBits, Pairs>;
std::string_view name(const WeightForm& form);  // "int8", "int4", "nf4", "2:4"
// The form of that name. Throws a ValueError that lists all names.
WeightForm weight_form_by_name(std::string_view name);

struct AdaptOptions {
  // The form of linear layers' weights; by default they stay in the model's dtype. Embeddings,
  // norms, biases and the head of a language model stay so in any case.
  std::optional<WeightForm> base = {};
  std::optional<LoraOptions> lora = {};
  // The layers with an adapter, by pattern (see `matches`). By default those that PEFT takes:
  // q_proj and v_proj, c_attn, query_key_value, or query and value.
  std::vector<std::string> modules = {};
};

// Whether a module's path fits a pattern: `*` stands for any characters; a pattern without it is
// the whole path or its last parts ("q_proj", "self_attn.q_proj").
bool matches(std::string_view pattern, std::string_view path);

// Everything but adapters is frozen. A pattern that fits no linear layer is an error.
void adapt(ModuleBase& model, const AdaptOptions& options);

// Packs the weights of linear layers. In few bits: all layers except those whose weights are read
// directly; packed weights are never trained. As pairs: only layers inside blocks, where pruning
// makes the pattern; their values can be trained. Weights that already exist must have the pattern.
void pack_layers(ModuleBase& model, const WeightForm& form);

// The linear layers of a model, those with an adapter, and whether a weight is in few bits or in
// pairs.
std::vector<Linear*> linear_layers(ModuleBase& model);
std::vector<const Linear*> adapted_layers(const ModuleBase& model);
bool has_packed_weights(const ModuleBase& model);
bool has_pairs(const ModuleBase& model);

// A parameter of the same model without adapters and packed weights: adapters are added to the
// weights. Values are lazy.
struct PlainParameter {
  std::string path;
  Tensor value;
};
std::vector<PlainParameter> merged_parameters(const ModuleBase& model);

}  // namespace ebb::nn
