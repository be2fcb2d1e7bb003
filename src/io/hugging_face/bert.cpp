#include <fmt/core.h>

#include <charconv>

#include "core/json.h"
#include "io/hugging_face/family.h"

namespace ebb::io {
namespace {

using models::EncoderFamily;

struct EncoderName {
  const char *type, *classifier, *masked_lm;  // model_type and architectures
  EncoderFamily family;
};
constexpr EncoderName encoder_families[] = {
    {"bert", "BertForSequenceClassification", "BertForMaskedLM", EncoderFamily::bert},
    {"roberta", "RobertaForSequenceClassification", "RobertaForMaskedLM", EncoderFamily::roberta},
    {"distilbert", "DistilBertForSequenceClassification", "DistilBertForMaskedLM",
     EncoderFamily::distilbert},
};

struct TaskName {
  const char* name;
  models::BertTask task;
};
constexpr TaskName task_names[] = {
    {"single_label_classification", models::BertTask::one_of},
    {"multi_label_classification", models::BertTask::any_of},
    {"regression", models::BertTask::regression},
};

std::optional<models::BertTask> read_task(Fields& f) {
  const nlohmann::json value = f.value("problem_type");
  if (value.is_null()) return std::nullopt;
  std::string list;
  for (const TaskName& row : task_names) {
    if (value == row.name) return row.task;
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", row.name);
  }
  f.fail(fmt::format("\"problem_type\" must be one of {} or null, but is {}", list,
                     json_excerpt(value)));
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The number of classes: the number of names in id2label, or num_labels, or two.
std::int64_t read_classes(Fields& f) {
  const nlohmann::json names = f.value("id2label"), ids = f.value("label2id");
  std::optional<std::int64_t> classes;
  if (!names.is_null()) {
    if (!names.is_object() || names.empty())
      f.fail(fmt::format("\"id2label\" must be an object that names each class, but is {}",
                         json_excerpt(names)));
    std::set<std::int64_t> numbers;
    for (const auto& [id, label] : names.items())
      if (!number(id) || !label.is_string() || !numbers.insert(*number(id)).second)
        f.fail(fmt::format("\"id2label\" must give each number a name, but has \"{}\": {}", id,
                           json_excerpt(label)));
    classes = static_cast<std::int64_t>(names.size());
  }
  if (!ids.is_null() && !ids.is_object())
    f.fail(fmt::format("\"label2id\" must be an object or null, but is {}", json_excerpt(ids)));
  for (const char* field : {"num_labels", "_num_labels"}) {
    const auto said = f.size_or_null(field, 1);
    if (said && classes && *said != *classes)
      f.fail(fmt::format("\"{}\" is {}, but there are {} classes", field, *said, *classes));
    if (said) classes = said;
  }
  return classes.value_or(2);
}

}  // namespace

std::optional<EncoderFamily> encoder_family(std::string_view type) {
  for (const EncoderName& row : encoder_families)
    if (type == row.type) return row.family;
  return {};
}

namespace {

void read_sizes(Fields& f, models::BertConfig& c) {
  const bool roberta = c.family == EncoderFamily::roberta;
  c.vocabulary = f.size("vocab_size", 1, roberta ? 50265 : 30522);
  c.width = f.size("hidden_size", 1, 768);
  c.layers = f.layers("num_hidden_layers", 12);
  c.heads = f.size("num_attention_heads", 1, 12);
  c.hidden = f.size("intermediate_size", 1, 3072);
  c.context = f.size("max_position_embeddings", 1, 512);
  c.types = f.size("type_vocab_size", 1, 2);
  c.eps = f.positive("layer_norm_eps", 1e-12);
  c.activation = f.activation("hidden_act", nn::Activation::gelu);
  c.dropout.hidden = f.probability("hidden_dropout_prob", 0.1);
  c.dropout.attention = f.probability("attention_probs_dropout_prob", 0.1);
  c.dropout.classifier = f.probability_or_null("classifier_dropout");
  f.only("position_embedding_type", {"absolute"});
  if (roberta) return;
  f.only("directionality", {"bidi"});
  f.only("pooler_type", {"first_token_transform"});
  // Other sizes of the pooler occur in old files and are not used.
  f.harmless({"pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
              "pooler_size_per_head"});
}

void read_distilbert_sizes(Fields& f, models::BertConfig& c) {
  c.vocabulary = f.size("vocab_size", 1, 30522);
  c.width = f.size(f.either("dim", "hidden_size"), 1, 768);
  c.layers = f.layers(f.either("n_layers", "num_hidden_layers"), 6);
  c.heads = f.size(f.either("n_heads", "num_attention_heads"), 1, 12);
  c.hidden = f.size("hidden_dim", 1, 4 * 768);
  c.context = f.size("max_position_embeddings", 1, 512);
  c.types = 0, c.eps = 1e-12;
  c.activation = f.activation("activation", nn::Activation::gelu);
  c.dropout.hidden = f.probability("dropout", 0.1);
  c.dropout.attention = f.probability("attention_dropout", 0.1);
  c.dropout.classifier = f.probability("seq_classif_dropout", 0.2);
  // The first is how positions were initialised, the second belongs to another head.
  f.harmless({"sinusoidal_pos_embds", "qa_dropout"});
}

}  // namespace

models::BertConfig read_bert(Fields& f, EncoderFamily family) {
  f.common();
  models::BertConfig c;
  c.family = family;
  if (family == EncoderFamily::distilbert)
    read_distilbert_sizes(f, c);
  else
    read_sizes(f, c);
  c.initial_deviation = f.positive("initializer_range", 0.02);
  const std::int64_t usual_padding = family == EncoderFamily::roberta ? 1 : 0;
  c.padding = f.file().json().contains("pad_token_id") ? f.padding(c.vocabulary) : usual_padding;
  if (family == EncoderFamily::roberta && (!c.padding || c.longest() < 1))
    f.fail(
        "\"pad_token_id\" must be a token with a number below \"max_position_embeddings\" - 1: "
        "positions are counted from it on");
  c.classes = read_classes(f);
  c.task = read_task(f);
  if (c.task == models::BertTask::one_of && c.classes < 2)
    f.fail("\"problem_type\" \"single_label_classification\" needs at least 2 classes");
  f.only("is_decoder", {false});
  f.only("is_causal", {false});
  c.tied = f.flag("tie_word_embeddings", true);  // of the head for masked words
  return c;
}

Names bert_names(const models::BertConfig& c, EncoderHead head) {
  Names names{.prefix = "bert.", .heads = {"classifier", "cls"}, .old_norms = true};
  names.buffers = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"};
  const auto unused = [&](const char* prefix, std::initializer_list<const char*> parts) {
    for (const char* part : parts) names.other_heads.insert(fmt::format("{}{}", prefix, part));
  };
  // Tensors of the other heads.
  unused("cls.seq_relationship.", {"weight", "bias"});
  if (head == EncoderHead::classifier) {
    names.may_start = {"bert.pooler.dense", "classifier"};
    unused("cls.predictions.",
           {"bias", "transform.dense.weight", "transform.dense.bias", "transform.LayerNorm.weight",
            "transform.LayerNorm.bias", "decoder.weight", "decoder.bias"});
  } else {
    names.may_start = {"cls.predictions"};
    // A decoder of its own also has the bias under its own name; transformers shares the two only
    // if they are tied.
    if (!c.tied && c.family != EncoderFamily::distilbert)
      names.second_names = {{"cls.predictions.decoder.bias", "cls.predictions.bias"}};
    unused("bert.pooler.dense.", {"weight", "bias"});
    unused("classifier.", {"weight", "bias"});
  }
  switch (c.family) {
    case EncoderFamily::bert:
      break;
    case EncoderFamily::roberta:
      names.prefix = "roberta.", names.heads = {"classifier", "lm_head"};
      // The encoder's own pooler is not used by a classifier, which has a dense layer of its own.
      names.spelled = {{"roberta.pooler.", "unused_pooler."},
                       {"roberta.", "bert."},
                       {"classifier.dense.", "bert.pooler.dense."},
                       {"classifier.out_proj.", "classifier."},
                       {"lm_head.", "cls.predictions."},
                       {"cls.predictions.dense.", "cls.predictions.transform.dense."},
                       {"cls.predictions.layer_norm.", "cls.predictions.transform.LayerNorm."}};
      unused("unused_pooler.", {"dense.weight", "dense.bias"});
      break;
    case EncoderFamily::distilbert:
      names.prefix = "distilbert.";
      names.heads = {"classifier", "pre_classifier", "vocab_transform", "vocab_layer_norm",
                     "vocab_projector"};
      names.spelled = {{"distilbert.", "bert."},
                       {"bert.transformer.", "bert.encoder."},
                       {".attention.q_lin.", ".attention.self.query."},
                       {".attention.k_lin.", ".attention.self.key."},
                       {".attention.v_lin.", ".attention.self.value."},
                       {".ffn.lin1.", ".intermediate.dense."},
                       {".ffn.lin2.", ".output.dense."},
                       {".output_layer_norm.", ".output.LayerNorm."},
                       {".attention.out_lin.", ".attention.output.dense."},
                       {".sa_layer_norm.", ".attention.output.LayerNorm."},
                       {"pre_classifier.", "bert.pooler.dense."},
                       {"vocab_transform.", "cls.predictions.transform.dense."},
                       {"vocab_layer_norm.", "cls.predictions.transform.LayerNorm."},
                       {"vocab_projector.bias", "cls.predictions.bias"},
                       {"vocab_projector.", "cls.predictions.decoder."}};
  }
  return names;
}

nlohmann::json write_bert(const models::BertConfig& c, EncoderHead head) {
  nlohmann::json labels = nlohmann::json::object(), ids = labels, task;
  for (std::int64_t i = 0; i < c.classes; ++i) {
    labels[std::to_string(i)] = fmt::format("LABEL_{}", i);
    ids[fmt::format("LABEL_{}", i)] = i;
  }
  for (const TaskName& row : task_names)
    if (c.task == row.task) task = row.name;
  nlohmann::json fields{{"vocab_size", c.vocabulary},
                        {"max_position_embeddings", c.context},
                        {"initializer_range", c.initial_deviation},
                        {"pad_token_id", c.padding ? nlohmann::json(*c.padding) : nlohmann::json()},
                        {"problem_type", task},
                        {"id2label", labels},
                        {"label2id", ids}};
  if (head == EncoderHead::masked_lm) fields["tie_word_embeddings"] = c.tied;
  for (const EncoderName& row : encoder_families)
    if (row.family == c.family)
      fields["model_type"] = row.type,
      fields["architectures"] = {head == EncoderHead::classifier ? row.classifier : row.masked_lm};
  if (c.family == EncoderFamily::distilbert) {
    fields.update({{"dim", c.width},
                   {"n_layers", c.layers},
                   {"n_heads", c.heads},
                   {"hidden_dim", c.hidden},
                   {"activation", nn::name(c.activation)},
                   {"dropout", c.dropout.hidden},
                   {"attention_dropout", c.dropout.attention},
                   {"seq_classif_dropout", c.dropout.classifier.value_or(c.dropout.hidden)}});
    return fields;
  }
  fields.update({{"position_embedding_type", "absolute"},
                 {"hidden_size", c.width},
                 {"num_hidden_layers", c.layers},
                 {"num_attention_heads", c.heads},
                 {"intermediate_size", c.hidden},
                 {"type_vocab_size", c.types},
                 {"layer_norm_eps", c.eps},
                 {"hidden_act", nn::name(c.activation)},
                 {"hidden_dropout_prob", c.dropout.hidden},
                 {"attention_probs_dropout_prob", c.dropout.attention},
                 {"classifier_dropout", c.dropout.classifier ? nlohmann::json(*c.dropout.classifier)
                                                             : nlohmann::json()}});
  return fields;
}

}  // namespace ebb::io
