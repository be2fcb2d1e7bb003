// BERT for sequence classification, with the parameter names of its published weights.
#pragma once

#include <memory>
#include <optional>

#include "ebb/models/origin.h"
#include "ebb/models/text_classifier.h"
#include "ebb/nn/layers.h"

namespace ebb::models {

// Probabilities of dropout; a single number sets all of them.
struct BertDropout {
  double hidden = 0.1;                    // of embeddings and of each branch before it is added
  double attention = 0.1;                 // of attention weights
  std::optional<double> classifier = {};  // before the last layer; nothing: as `hidden`

  constexpr BertDropout(double all = 0.1) : hidden(all), attention(all) {}
};

// The meaning of the outputs, which determines the loss.
enum class BertTask : std::uint8_t {
  one_of,      // one class of several: cross-entropy
  any_of,      // each class by itself: binary cross-entropy
  regression,  // numbers: mean squared error
};

// Encoders that are BERT with other parts.
enum class EncoderFamily : std::uint8_t {
  bert,
  roberta,     // positions skip padding and start after its number; a dense layer, and dropout
               // before it, in the place of the pooler
  distilbert,  // no token types, no dropout after attention, ReLU in the pooler
};

struct BertConfig {
  std::int64_t vocabulary = 30522, width = 768, layers = 12, heads = 12, hidden = 3072,
               context = 512, types = 2, classes = 2;
  BertDropout dropout = 0.1;
  double eps = 1e-12;
  nn::Activation activation = nn::Activation::gelu;
  std::optional<BertTask> task = {};  // empty: determined by `classes` and the labels; see loss()
  std::optional<std::int64_t> padding = {};    // a token whose embedding is not trained
  double initial_deviation = 0.02;             // of weights that start from random values
  EncoderFamily family = EncoderFamily::bert;  // RoBERTa needs `padding`
  bool tied = true;  // of the head for masked words: its matrix is the table of embeddings
  // Tokens of a text at most: RoBERTa has positions that no token takes.
  std::int64_t longest() const {
    return family == EncoderFamily::roberta ? context - padding.value_or(0) - 1 : context;
  }
};

class BertEmbeddings : public nn::Module<BertEmbeddings> {
 public:
  BertEmbeddings(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& ids);  // (B, T) → (B, T, width); all tokens of the first type
  const Variable& words() const { return word_embeddings_.weight; }  // (vocabulary, width)

 private:
  Tensor positions_of(const Tensor& ids) const;  // of RoBERTa, (B, T)

  std::optional<std::int64_t> padding_;  // of RoBERTa
  nn::Embedding word_embeddings_, position_embeddings_;
  std::unique_ptr<nn::Embedding> token_type_embeddings_;  // null for DistilBERT
  nn::LayerNorm layer_norm_;
  nn::Dropout dropout_;
};

// A linear layer, dropout, and a norm over the sum with the residual: how BERT ends both halves of
// a layer.
class BertOutput : public nn::Module<BertOutput> {
 public:
  BertOutput(nn::Place place, std::int64_t in, const BertConfig& config, double dropout);
  Tensor forward(const Tensor& x, const Tensor& residual) {
    return layer_norm_(dropout_(dense_(x)) + residual);
  }

 private:
  nn::Linear dense_;
  nn::LayerNorm layer_norm_;
  nn::Dropout dropout_;
};

class BertSelfAttention : public nn::Module<BertSelfAttention> {
 public:
  BertSelfAttention(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& x, const Tensor& mask);

 private:
  std::int64_t heads_;
  nn::Linear query_, key_, value_;
  nn::Dropout dropout_;
};

class BertAttention : public nn::Module<BertAttention> {
 public:
  BertAttention(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& x, const Tensor& mask) { return output_(self_(x, mask), x); }

 private:
  BertSelfAttention self_;
  BertOutput output_;
};

class BertIntermediate : public nn::Module<BertIntermediate> {
 public:
  BertIntermediate(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& x) { return activate(activation_, dense_(x)); }

 private:
  nn::Activation activation_;
  nn::Linear dense_;
};

class BertLayer : public nn::Module<BertLayer> {
 public:
  BertLayer(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& x, const Tensor& mask);

 private:
  BertAttention attention_;
  BertIntermediate intermediate_;
  BertOutput output_;
};

class BertEncoder : public nn::Module<BertEncoder> {
 public:
  BertEncoder(nn::Place place, const BertConfig& config);
  Tensor forward(Tensor x, const Tensor& mask);

 private:
  nn::List<BertLayer> layer_;
};

class BertPooler : public nn::Module<BertPooler> {
 public:
  BertPooler(nn::Place place, const BertConfig& config);
  Tensor forward(const Tensor& x);  // (B, T, width) → (B, width), from the first token

 private:
  nn::Activation activation_;
  nn::Dropout dropout_;
  nn::Linear dense_;
};

enum class Pooling : bool { no, yes };

class BertModel : public nn::Module<BertModel> {
 public:
  BertModel(nn::Place place, const BertConfig& config, Pooling pooling);
  // Of the whole text, (B, width); only with a pooler. `mask` (B, T) is true for real tokens;
  // empty: all are.
  Tensor forward(const Tensor& ids, const Tensor& mask) { return (*pooler_)(hidden(ids, mask)); }
  Tensor hidden(const Tensor& ids, const Tensor& mask);  // of every token, (B, T, width)
  const Variable& words() const { return embeddings_.words(); }

 private:
  BertEmbeddings embeddings_;
  BertEncoder encoder_;
  std::unique_ptr<BertPooler> pooler_;
};

class BertClassifier : public nn::Module<BertClassifier>, public TextClassifier, public HasOrigin {
 public:
  explicit BertClassifier(const BertConfig& config);
  // ids (B, T) → logits (B, classes). `mask` (B, T) is true for real tokens; empty: all are.
  Tensor forward(const Tensor& ids, const Tensor& mask = {});
  // The mean loss of the config's task. `labels` are class numbers (B) for one_of, floating (B,
  // classes) for any_of, and floating (B, classes) for regression, or (B) if there is one class.
  // Without a task in the config, one class means regression; otherwise whole numbers mean one_of
  // and floating ones any_of.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Tensor& mask = {}) override;
  Tensor logits(const Tensor& ids, const Tensor& mask) override { return (*this)(ids, mask); }
  std::int64_t classes() const override { return config_.classes; }
  std::int64_t vocabulary() const override { return config_.vocabulary; }
  std::int64_t context() const override { return config_.longest(); }
  bool chooses_one() const override {
    return config_.task ? *config_.task == BertTask::one_of : config_.classes > 1;
  }
  const BertConfig& config() const { return config_; }

 private:
  BertConfig config_;
  BertModel bert_;
  nn::Dropout dropout_;
  nn::Linear classifier_;
};

}  // namespace ebb::models
