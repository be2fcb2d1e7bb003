// Classification workloads: bert on labelled text, resnet and mlp on images.
#include <fmt/core.h>

#include "data/gzip.h"
#include "ebb/data/generated.h"
#include "ebb/data/images.h"
#include "ebb/data/labelled_text.h"
#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "ebb/models/bert.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "ebb/prune/models.h"
#include "workloads/accuracy.h"
#include "workloads/families.h"
#include "workloads/image_sets.h"
#include "workloads/random_parts.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

// Splits a generated source, whose items are in no order: the last are held out for testing.
void split_source(Workload& workload, const data::DatasetPtr& source, const std::string& name) {
  const std::int64_t count = source->size(), cut = count - held_out(count, name);
  workload.train = data::Subset::range(source, 0, cut);
  workload.test = data::Subset::range(source, cut, count);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return DataPart{fmt::format("{}, items {} to {}", name, begin, end)};
  };
  workload.train_part = part(0, cut), workload.test_part = part(cut, count);
}

// Splits labelled texts, which may be in order of class.
void split_texts(Workload& workload, const data::LabelledTextsPtr& texts,
                 const data::LabelledTextOptions& options, const std::string& name) {
  const auto all = std::make_shared<data::LabelledTextDataset>(texts, options);
  Parts parts = random_parts(texts->labels, name);
  workload.train_part.source = train_source(parts, name, "texts");
  workload.test_part.source = test_source(parts, name, "texts");
  workload.train = std::make_shared<data::Subset>(all, std::move(parts.train));
  workload.test = std::make_shared<data::Subset>(all, std::move(parts.test));
}

struct ImageShape {
  std::int64_t channels = 3, height = 32, width = 32, classes = 10;
};

ImageShape images_from(Workload& workload, const Options& options, bool augment) {
  const ImageSets sets = read_image_sets(*options.data, options.image_size);
  workload.train_part.source = sets.train_source, workload.test_part.source = sets.test_source;
  workload.settings.image_size = sets.scaled_to;
  const data::ImageOptions plain = sets.plain();
  workload.train =
      std::make_shared<data::ImageDataset>(sets.train, augment ? sets.varied() : plain);
  workload.test = std::make_shared<data::ImageDataset>(sets.test, plain);
  return {sets.train->channels, sets.train->height, sets.train->width, sets.train->classes};
}

// Images from files, or generated images whose best possible accuracy is known.
ImageShape image_data(Workload& workload, const Options& options, bool augment) {
  if (options.data) return images_from(workload, options, augment);
  data::GaussianImageOptions source;
  source.classes = options.classes.value_or(10);
  if (source.classes < 2)
    throw ValueError(
        fmt::format("at least 2 classes are needed to tell apart, but the option classes is {}",
                    source.classes));
  source.separation = 8.0;
  source.seed = options.seed;
  const auto images = std::make_shared<data::GaussianImages>(source);
  split_source(workload, images, "generated images");
  workload.limit = Limit{Limit::Kind::accuracy, images->best_accuracy()};
  return {source.channels, source.height, source.width, source.classes};
}

class BertWorkload : public Workload {
 public:
  explicit BertWorkload(const Options& o) {
    models::BertConfig c;
    const std::int64_t sequence = o.sequence.value_or(128);
    c.classes = o.classes.value_or(4);
    c.context = std::max(c.context, sequence);
    c.layers = o.layers.value_or(c.layers);
    c.heads = o.heads.value_or(c.heads);
    c.width = o.width.value_or(c.width);
    c.hidden = o.hidden.value_or(4 * c.width);
    if (o.dropout) c.dropout = *o.dropout;
    c.task = models::BertTask::one_of;
    c.vocabulary = o.vocabulary.value_or(c.vocabulary);
    batch_size = o.batch.value_or(8);
    saves = true;
    if (o.data) {
      const bool csv = data::without_gzip(*o.data).extension() == ".csv";
      const std::int64_t first = o.labels_from.value_or(csv ? 1 : 0);
      if (first != 0 && first != 1)
        throw ValueError(fmt::format("the option labels_from is 0 or 1, but is {}", first));
      const auto texts = csv ? data::read_labelled_csv(*o.data, c.classes, first)
                             : data::read_labelled_jsonl(*o.data, c.classes, first);
      settings.labels_from = first;
      split_texts(
          *this, texts, {.sequence = sequence, .vocabulary = c.vocabulary},
          fmt::format("{}, labels {} to {}", o.data->string(), first, first + c.classes - 1));
    } else {
      data::LabelledSequenceOptions source;
      source.classes = c.classes;
      source.vocabulary = c.vocabulary;
      source.sequence = sequence;
      source.seed = o.seed;
      const auto sequences = std::make_shared<data::LabelledSequences>(source);
      split_source(*this, sequences, "generated sequences");
      limit = Limit{Limit::Kind::accuracy, sequences->best_accuracy()};
    }
    settings.sequence = sequence, settings.classes = c.classes, settings.layers = c.layers;
    settings.heads = c.heads, settings.width = c.width, settings.hidden = c.hidden;
    settings.dropout = c.dropout.hidden, settings.vocabulary = c.vocabulary,
    settings.batch = batch_size;
    const nn::MakeScope scope(o.device, o.dtype);
    model_ = std::make_unique<models::BertClassifier>(c);
  }
  nn::ModuleBase& model() override { return *model_; }
  Tensor loss(const Batch& b) override { return model_->loss(b.x(), b.y(), b.at(2)); }
  Tensor accuracy(const Batch& b) override { return share_right((*model_)(b.x(), b.at(2)), b.y()); }
  optim::Optimizer optimizer() const override {
    return optim::Optimizer(optim::AdamW{.lr = 5e-5}).with(optim::no_decay_for_vectors());
  }
  bool save(const fs::path& folder) const override { return io::save(*model_, folder), true; }
  void shrink(const prune::Structure& structure, const prune::Removal& removal,
              prune::Values values) override {
    prune::shrink(model_, structure, removal, values);
  }
  std::optional<std::string> refused_by_transformers() const override {
    return prune::refused_by_transformers(model_->config());
  }

 private:
  std::unique_ptr<models::BertClassifier> model_;
};

template <class Model>
class ImageWorkload : public Workload {
 public:
  nn::ModuleBase& model() override { return *model_; }
  Tensor loss(const Batch& b) override {
    return cross_entropy((*model_)(cast(b.x(), model_->dtype())), b.y());
  }
  Tensor accuracy(const Batch& b) override {
    return share_right((*model_)(cast(b.x(), model_->dtype())), b.y());
  }
  void shrink(const prune::Structure& structure, const prune::Removal& removal,
              prune::Values values) override {
    prune::shrink(model_, structure, removal, values);
  }

 protected:
  template <class Config>
  void make_model(const Options& options, const Config& config) {
    const nn::MakeScope scope(options.device, options.dtype);
    model_ = std::make_unique<Model>(config);
  }

 private:
  std::unique_ptr<Model> model_;
};

class ResNetWorkload : public ImageWorkload<models::ResNet> {
 public:
  explicit ResNetWorkload(const Options& o) {
    const ImageShape shape = image_data(*this, o, true);
    const std::int64_t depth = o.depth.value_or(32);
    if (depth != 18 && depth != 32 && depth != 50)
      throw ValueError(fmt::format("a ResNet's depth is 18, 32 or 50, but {} came", depth));
    models::ResNetConfig config = depth == 18   ? models::ResNetConfig::resnet18(shape.classes)
                                  : depth == 32 ? models::ResNetConfig::resnet32(shape.classes)
                                                : models::ResNetConfig::resnet50(shape.classes);
    config.channels = shape.channels;
    config.layout = o.image_layout();
    batch_size = o.batch.value_or(64);
    settings.depth = depth, settings.layout = config.layout, settings.batch = batch_size;
    if (!o.data) settings.classes = shape.classes;
    make_model(o, config);
  }
  optim::Optimizer optimizer() const override {
    return optim::SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
  }
};

class MlpWorkload : public ImageWorkload<models::Mlp> {
 public:
  explicit MlpWorkload(const Options& o) {
    const ImageShape shape = image_data(*this, o, false);
    models::MlpConfig c;
    c.inputs = shape.channels * shape.height * shape.width;
    c.classes = shape.classes;
    c.hidden = o.hidden.value_or(o.width.value_or(c.hidden));
    c.layers = o.layers.value_or(c.layers);
    batch_size = o.batch.value_or(64);
    settings.width = o.width, settings.layers = c.layers, settings.batch = batch_size;
    if (c.layers > 1 && !o.width) settings.hidden = c.hidden;
    if (!o.data) settings.classes = shape.classes;
    make_model(o, c);
  }
  optim::Optimizer optimizer() const override { return optim::AdamW{.lr = 1e-3}; }
};

}  // namespace

std::unique_ptr<Workload> make_bert(const Options& options) {
  return std::make_unique<BertWorkload>(options);
}
std::unique_ptr<Workload> make_resnet(const Options& options) {
  return std::make_unique<ResNetWorkload>(options);
}
std::unique_ptr<Workload> make_mlp(const Options& options) {
  return std::make_unique<MlpWorkload>(options);
}

}  // namespace ebb::workloads
