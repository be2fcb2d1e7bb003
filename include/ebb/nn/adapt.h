// Freezes a model, stores its linear layers in few bits and gives some of them adapters. Call it
// before weights are loaded or computed: they are then packed one by one, and the model never
// exists at full size.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/nn/layers.h"

namespace ebb::nn {

struct AdaptOptions {
  // The bits of linear layers' weights; by default they stay in the model's dtype. Embeddings,
  // norms, biases and the head of a language model stay so in any case.
  std::optional<LowBits> base = {};
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

// The linear layers of a model, those with an adapter, and whether a weight is packed.
std::vector<Linear*> linear_layers(ModuleBase& model);
std::vector<const Linear*> adapted_layers(const ModuleBase& model);
bool has_packed_weights(const ModuleBase& model);

// The parameters of the same model without adapters and packed weights, by their paths: adapters
// are added to the weights. Values are lazy.
struct PlainParameter {
  std::string path;
  Tensor value;
};
std::vector<PlainParameter> merged_parameters(const ModuleBase& model);

}  // namespace ebb::nn
