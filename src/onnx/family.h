// One description for each family of models: the graph that computes what its `logits` or `forward`
// computes in evaluation.
#pragma once

#include "ebb/models/bert.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "ebb/onnx/export.h"
#include "onnx/builder.h"

namespace ebb::onnx {

void describe(Builder& b, const models::Gpt2Config& config, Cache cache);
void describe(Builder& b, const models::LlamaConfig& config, Cache cache);
void describe(Builder& b, const models::LanguageModelConfig& config, Cache cache);
void describe(Builder& b, const models::BertConfig& config);
void describe(Builder& b, const models::ResNetConfig& config);
void describe(Builder& b, const models::MlpConfig& config);

}  // namespace ebb::onnx
