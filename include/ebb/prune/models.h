// Makes smaller models of the families ebb has: which groups are removed, and the config of the
// rest.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "ebb/models/bert.h"
#include "ebb/models/bert_masked_lm.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "ebb/prune/remove.h"

namespace ebb::prune {

struct StructuredOptions {
  double keep = 0.7;          // share of each kind that stays, in every layer
  std::set<Kind> kinds = {};  // empty: none if `blocks` is set, otherwise all that the model has
  bool blocks = false;        // whether blocks are removed too, by the same share
  std::int64_t multiple = 1;  // numbers of neurons and channels that stay are multiples of it
  std::string under = {};     // only parts of the model below this path; empty: all
};

// Chooses the groups with the lowest scores, the same share of every dimension, because the config
// of most families has one number for all layers. A kind that the model lacks is a ValueError.
Removal choose(const Structure& structure, const Scores& scores, const StructuredOptions& options);

// What `ebb prune` and `ebb train --prune` remove by default: all kinds that the config of the
// family can express.
StructuredOptions usual_structure(const nn::ModuleBase& model);

// The shape that remains of the variable with this path in the dense model.
Shape shape_without(const Structure& structure, const Removal& removal, const std::string& path);

// The config of the model that remains. Throws a ValueError if a config cannot express it.
models::Gpt2Config smaller(const models::Gpt2Config& config, const Structure& structure,
                           const Removal& removal);
models::LlamaConfig smaller(const models::LlamaConfig& config, const Structure& structure,
                            const Removal& removal);
models::BertConfig smaller(const models::BertConfig& config, const Structure& structure,
                           const Removal& removal);
models::LanguageModelConfig smaller(const models::LanguageModelConfig& config,
                                    const Structure& structure, const Removal& removal);
models::MlpConfig smaller(const models::MlpConfig& config, const Structure& structure,
                          const Removal& removal);
models::ResNetConfig smaller(const models::ResNetConfig& config, const Structure& structure,
                             const Removal& removal);

// Why transformers cannot load a folder of this model; empty if it can.
std::optional<std::string> refused_by_transformers(const models::Gpt2Config& config);
std::optional<std::string> refused_by_transformers(const models::LlamaConfig& config);
std::optional<std::string> refused_by_transformers(const models::BertConfig& config);

// Whether a smaller model gets the dense one's weights, or shapes alone.
enum class Values : bool { none, copied };

// A model of the shapes that remain, which has no values yet, on the device and in the dtype of the
// dense one.
template <class Model>
std::unique_ptr<Model> reshaped(const Model& dense, const Structure& structure,
                                const Removal& removal);

// The model that remains, on the device and in the dtype of the dense one. With Release::yes, the
// dense model's weights are freed one by one as they are copied.
template <class Model>
std::unique_ptr<Model> pruned(const Model& dense, const Structure& structure,
                              const Removal& removal, Release release = Release::no);

// Replaces a model by the smaller one. With Values::copied the dense weights are freed one by one.
template <class Model>
void shrink(std::unique_ptr<Model>& model, const Structure& structure, const Removal& removal,
            Values values) {
  model = values == Values::copied ? pruned(*model, structure, removal, Release::yes)
                                   : reshaped(*model, structure, removal);
}

}  // namespace ebb::prune
