// The workload of a Hugging Face folder: its model is trained further on text.
#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/io/adapter.h"
#include "ebb/io/hugging_face.h"
#include "ebb/nn/adapt.h"
#include "ebb/ops.h"
#include "ebb/prune/models.h"
#include "io/hugging_face/replace.h"
#include "workloads/accuracy.h"
#include "workloads/families.h"
#include "workloads/folder_text.h"
#include "workloads/text_files.h"

namespace ebb::workloads {
namespace {

constexpr double fine_tuning_rate = 5e-5;

// Labelled texts are classified; in any other text an encoder predicts masked words.
io::EncoderHead head_for(const Options& o) {
  if (!o.data || io::predicts_next_token(*o.model)) return io::EncoderHead::classifier;
  if (has_labels(std::filesystem::is_directory(*o.data) ? text_files(*o.data).train : *o.data))
    return io::EncoderHead::classifier;
  if (o.labels_from)
    throw ValueError(fmt::format(
        "{}: the option labels_from is for labelled texts, .csv or .jsonl with \"label\"",
        o.data->string()));
  return io::EncoderHead::masked_lm;
}

class FolderWorkload : public Workload {
 public:
  explicit FolderWorkload(const Options& o)
      : folder_(io::open_folder(*o.model, o.device, o.dtype, head_for(o))),
        pack_(o.pack),
        fused_loss_(o.fused_loss),
        merge_(o.merge) {
    if (nn::has_packed_weights(*folder_.module) && !o.lora && !o.adapter)
      throw ValueError(fmt::format(
          "{}: its weights are in few bits and are not trained; adapters are (the option lora)",
          o.model->string()));
    const std::int64_t context = folder_.lm          ? folder_.lm->context()
                                 : folder_.masked_lm ? folder_.masked_lm->context()
                                                     : folder_.classifier->context(),
                       usual = folder_.lm ? 1024 : 128,
                       sequence = o.sequence.value_or(std::min(context, usual));
    if (sequence < 1 || sequence > context)
      throw ValueError(
          fmt::format("the option sequence must be between 1 and {}, the context of the model in "
                      "{}, but is {}",
                      context, o.model->string(), sequence));
    TextData text = o.data ? folder_text(folder_, o, sequence)
                           : generated_text(sequence, folder_.lm->vocabulary(), o.seed);
    train = std::move(text.train), test = std::move(text.test);
    train_part = text.train_part, test_part = text.test_part;
    fuses_loss = folder_.lm && !o.pack;
    if (folder_.masked_lm ||
        (folder_.lm && o.data && data::is_json_lines(text_files(*o.data).train)))
      weight = [](const Batch& b) {
        const Tensor none = scalar_like(b.y(), data::SequenceDataset::no_target);
        return sum(cast(not_equal(b.y(), none), f32));
      };
    saves = true;
    batch_size = o.batch.value_or(folder_.lm ? 4 : 8);
    settings.sequence = sequence, settings.batch = batch_size;
  }

  nn::ModuleBase& model() override { return *folder_.module; }
  Tensor loss(const Batch& b) override {
    if (folder_.masked_lm) return folder_.masked_lm->loss(b.x(), b.y(), b.at(2));
    if (folder_.classifier) return folder_.classifier->loss(b.x(), b.y(), b.at(2));
    if (pack_) return folder_.lm->packed_loss(b.x(), b.y(), {.positions = b.at(2)});
    return fused_loss_ ? folder_.lm->loss(b.x(), b.y())
                       : cross_entropy(folder_.lm->logits(b.x()), b.y());
  }
  Tensor accuracy(const Batch& b) override {
    if (!folder_.classifier) return {};
    return share_right(folder_.classifier->logits(b.x(), b.at(2)), b.y());
  }
  optim::Optimizer optimizer() const override {
    return optim::Optimizer(optim::AdamW{.lr = fine_tuning_rate})
        .with(optim::no_decay_for_vectors());
  }
  void load() override { folder_.load(); }
  void check_save() const override {
    if (!saves_whole()) io::check_adapters(*folder_.module);
  }
  bool save(const std::filesystem::path& folder) const override {
    if (saves_whole()) return folder_.save(folder), true;
    io::save_adapter(*folder_.module, folder, folder_.path.string());
    io::copy_tokenizer(folder_.path, folder);
    return true;
  }
  void shrink(const prune::Structure& structure, const prune::Removal& removal,
              prune::Values values) override {
    each_family([&]<class Model>(const Model& dense) {
      io::replace_model(folder_, values == prune::Values::copied
                                     ? prune::pruned(dense, structure, removal, prune::Release::yes)
                                     : prune::reshaped(dense, structure, removal));
    });
  }
  std::optional<std::string> refused_by_transformers() const override {
    std::optional<std::string> why;
    each_family([&](const auto& model) { why = prune::refused_by_transformers(model.config()); });
    return why;
  }

 private:
  bool saves_whole() const { return merge_ || nn::adapted_layers(*folder_.module).empty(); }
  // Calls use(model) with the model as its own class.
  template <class Use>
  void each_family(const Use& use) const {
    const auto attempt = [&]<class Model>(const nn::ModuleBase& module, const Model*) {
      const auto* model = dynamic_cast<const Model*>(&module);
      if (model) use(*model);
      return model != nullptr;
    };
    const nn::ModuleBase& module = *folder_.module;
    (void)(attempt(module, static_cast<const models::Gpt2*>(nullptr)) ||
           attempt(module, static_cast<const models::Llama*>(nullptr)) ||
           attempt(module, static_cast<const models::BertClassifier*>(nullptr)) ||
           attempt(module, static_cast<const models::BertMaskedLm*>(nullptr)));
  }

  io::ModelFolder folder_;
  bool pack_, fused_loss_, merge_;
};

}  // namespace

std::unique_ptr<Workload> make_folder(const Options& options) {
  if (!options.data && !io::predicts_next_token(*options.model))
    throw ValueError(
        "an encoder's folder needs the option data: labelled texts for a classifier, or other text "
        "to predict masked words in");
  if (options.tokens && !options.data)
    throw ValueError("the option tokens says how files are read, and there is no option data");
  if (options.pack && !options.data)
    throw ValueError("the option pack is for texts of the option data; generated text has no ends");
  return std::make_unique<FolderWorkload>(options);
}

}  // namespace ebb::workloads
