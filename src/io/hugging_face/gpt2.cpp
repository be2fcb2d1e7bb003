#include <fmt/core.h>

#include "io/hugging_face/family.h"

namespace ebb::io {

models::Gpt2Config read_gpt2(Fields& f) {
  f.common();
  models::Gpt2Config c;
  c.vocabulary = f.size("vocab_size", 1, 50257);
  c.context = f.size(f.either("n_positions", "max_position_embeddings"), 1, 1024);
  c.width = f.size(f.either("n_embd", "hidden_size"), 1, 768);
  c.layers = f.layers(f.either("n_layer", "num_hidden_layers"), 12);
  c.heads = f.size(f.either("n_head", "num_attention_heads"), 1, 12);
  c.hidden = f.size_or_null("n_inner", 1).value_or(0);
  // A field of ebb's own, for models without some of their heads; transformers refuses those.
  c.head_size = f.size_or_null("head_dim", 1).value_or(0);
  c.activation = f.activation("activation_function", nn::Activation::gelu_tanh);
  c.dropout.embedding = f.probability("embd_pdrop", 0.1);
  c.dropout.attention = f.probability("attn_pdrop", 0.1);
  c.dropout.residual = f.probability("resid_pdrop", 0.1);
  c.eps = f.positive("layer_norm_epsilon", 1e-5);
  c.tied = f.flag("tie_word_embeddings", true);
  c.scale_attention = f.flag("scale_attn_weights", true);
  c.scale_by_inverse_layer = f.flag("scale_attn_by_inverse_layer_idx", false);
  f.only("is_causal", {true});
  // The first asks for attention scores in float32, which ebb always uses. The model is always a
  // decoder. All weights are read, so none starts from initializer_range.
  f.harmless({"reorder_and_upcast_attn", "is_decoder", "initializer_range", "pad_token_id"});
  // Fields of other heads.
  f.harmless({"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
              "summary_first_dropout", "summary_last_dropout", "id2label", "label2id", "num_labels",
              "_num_labels", "problem_type"});
  // Unused fields of old files.
  f.harmless({"n_ctx", "n_special", "predict_special_tokens"});
  return c;
}

Names gpt2_names(const models::Gpt2Config& c) {
  Names names{.prefix = "transformer.", .heads = {"lm_head"}};
  for (std::int64_t i = 0; i < c.layers; ++i)  // the causal mask and the value it masks with
    for (const char* buffer : {"bias", "masked_bias"})
      names.buffers.insert(fmt::format("transformer.h.{}.attn.{}", i, buffer));
  return names;
}

nlohmann::json write_gpt2(const models::Gpt2Config& c) {
  nlohmann::json fields{{"architectures", {"GPT2LMHeadModel"}},
                        {"model_type", "gpt2"},
                        {"vocab_size", c.vocabulary},
                        {"n_positions", c.context},
                        {"n_ctx", c.context},
                        {"n_embd", c.width},
                        {"n_layer", c.layers},
                        {"n_head", c.heads},
                        {"n_inner", c.hidden ? nlohmann::json(c.hidden) : nlohmann::json()},
                        {"activation_function", nn::name(c.activation)},
                        {"embd_pdrop", c.dropout.embedding},
                        {"attn_pdrop", c.dropout.attention},
                        {"resid_pdrop", c.dropout.residual},
                        {"layer_norm_epsilon", c.eps},
                        {"scale_attn_weights", c.scale_attention},
                        {"scale_attn_by_inverse_layer_idx", c.scale_by_inverse_layer},
                        {"tie_word_embeddings", c.tied}};
  if (c.head_size) fields["head_dim"] = c.head_size;
  return fields;
}

}  // namespace ebb::io
