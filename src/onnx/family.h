// For each class of models, a description of the graph that computes what its `logits` or `forward`
// computes in evaluation. Llama's description also covers its relatives, and BERT's covers RoBERTa
// and DistilBERT: a description follows the fields of the config.
#pragma once

#include "ebb/io/hugging_face.h"
#include "ebb/models/bert.h"
#include "ebb/models/bert_masked_lm.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/language_model.h"
#include "ebb/models/llama.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "ebb/onnx/export.h"
#include "io/hugging_face/family.h"
#include "onnx/builder.h"

namespace ebb::onnx {

void describe(Builder& b, const models::Gpt2Config& config, Cache cache);
void describe(Builder& b, const models::LlamaConfig& config, Cache cache);
void describe(Builder& b, const models::LanguageModelConfig& config, Cache cache);
void describe(Builder& b, const models::BertConfig& config, io::EncoderHead head);
void describe(Builder& b, const models::ResNetConfig& config);
void describe(Builder& b, const models::MlpConfig& config);

// The description and the file names of a class of models, and the name of one of its models.
template <class Model>
struct Family {
  static constexpr bool predicts_next = std::is_base_of_v<models::CausalLm, Model>;
  static constexpr bool encodes =
      std::is_same_v<Model, models::BertClassifier> || std::is_same_v<Model, models::BertMaskedLm>;
  static constexpr io::EncoderHead head = std::is_same_v<Model, models::BertMaskedLm>
                                              ? io::EncoderHead::masked_lm
                                              : io::EncoderHead::classifier;

  static void describe(Builder& b, const Model& model, Cache cache) {
    if constexpr (predicts_next)
      onnx::describe(b, model.config(), cache);
    else if constexpr (encodes)
      onnx::describe(b, model.config(), head);
    else
      onnx::describe(b, model.config());
  }
  static io::Names names(const Model& model) {
    if constexpr (std::is_same_v<Model, models::Gpt2>)
      return io::gpt2_names(model.config());
    else if constexpr (std::is_same_v<Model, models::Llama>)
      return io::llama_names(model.config());
    else if constexpr (encodes)
      return io::bert_names(model.config(), head);
    else
      return {};
  }
  static std::string name(const Model& model) {
    if constexpr (std::is_same_v<Model, models::Gpt2>) return "gpt2";
    if constexpr (std::is_same_v<Model, models::Llama>)
      return io::write_llama(model.config()).at("model_type");
    if constexpr (encodes) return io::write_bert(model.config(), head).at("model_type");
    if constexpr (std::is_same_v<Model, models::LanguageModel>) return "lm";
    if constexpr (std::is_same_v<Model, models::ResNet>) return "resnet";
    if constexpr (std::is_same_v<Model, models::Mlp>) return "mlp";
  }
};

}  // namespace ebb::onnx
