// Workloads that classify: bert on labelled text, resnet and mlp on images.
#include <fmt/format.h>

#include "ebb/data/generated.h"
#include "ebb/data/images.h"
#include "ebb/data/labelled_text.h"
#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "ebb/models/bert.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "workloads/accuracy.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

// The last tenth of a generated source, or at most 2000 items, is kept for testing.
template <class Source>
void split_source(Workload& workload, const std::shared_ptr<Source>& source) {
  const std::int64_t kept = std::min<std::int64_t>(2000, source->size() / 10);
  workload.train = data::Subset::range(source, 0, source->size() - kept);
  workload.test = data::Subset::range(source, source->size() - kept, source->size());
}

struct ImageShape {
  std::int64_t channels = 3, height = 32, width = 32, classes = 10;
};

// CIFAR-10's or MNIST's folder, whichever it is, or generated images with a known best accuracy.
ImageShape image_data(Workload& workload, const Options& options, bool augment) {
  if (options.data) {
    const bool cifar = fs::exists(*options.data / "test_batch.bin") ||
                       fs::exists(*options.data / "data_batch_1.bin");
    const auto read = [&](data::Split split) {
      return cifar ? data::read_cifar10(*options.data, split)
                   : data::read_mnist(*options.data, split);
    };
    // MNIST's test files alone serve for both, as its training files are often left out.
    const bool has_train = cifar || fs::exists(*options.data / "train-images-idx3-ubyte") ||
                           fs::exists(*options.data / "train-images-idx3-ubyte.gz");
    const data::ImageSetPtr train = read(has_train ? data::Split::train : data::Split::test),
                            test = read(data::Split::test);
    data::ImageOptions plain{.normalise = data::channel_statistics(*train)}, varied = plain;
    if (augment) varied.crop_padding = 4, varied.flip = cifar;
    workload.train = std::make_shared<data::ImageDataset>(train, varied);
    workload.test = std::make_shared<data::ImageDataset>(test, plain);
    return {train->channels, train->height, train->width, train->classes};
  }
  data::GaussianImageOptions source;
  source.classes = options.classes.value_or(10);
  source.separation = 8.0;
  source.seed = options.seed;
  const auto images = std::make_shared<data::GaussianImages>(source);
  split_source(workload, images);
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
    c.dropout = o.dropout.value_or(c.dropout);
    c.vocabulary = o.vocabulary.value_or(c.vocabulary);
    batch_size = o.batch.value_or(8);
    saves = true;
    if (o.data) {
      const bool csv = o.data->extension() == ".csv";
      const auto texts = csv ? data::read_labelled_csv(*o.data, c.classes)
                             : data::read_labelled_jsonl(*o.data, c.classes);
      split_source(*this, std::make_shared<data::LabelledTextDataset>(
                              texts, data::LabelledTextOptions{.sequence = sequence,
                                                               .vocabulary = c.vocabulary}));
    } else {
      data::LabelledSequenceOptions source;
      source.classes = c.classes;
      source.vocabulary = c.vocabulary;
      source.sequence = sequence;
      source.seed = o.seed;
      const auto sequences = std::make_shared<data::LabelledSequences>(source);
      split_source(*this, sequences);
      limit = Limit{Limit::Kind::accuracy, sequences->best_accuracy()};
    }
    settings.sequence = sequence, settings.classes = c.classes, settings.layers = c.layers;
    settings.heads = c.heads, settings.width = c.width, settings.hidden = c.hidden;
    settings.dropout = c.dropout, settings.vocabulary = c.vocabulary, settings.batch = batch_size;
    const nn::MakeScope scope(o.device, o.dtype);
    model_ = std::make_unique<models::BertClassifier>(c);
  }
  nn::ModuleBase& model() override { return *model_; }
  Tensor loss(const Batch& b) override { return model_->loss(b.x(), b.y(), b.tensors.at(2)); }
  Tensor accuracy(const Batch& b) override {
    return share_right((*model_)(b.x(), b.tensors.at(2)), b.y());
  }
  optim::Optimizer optimizer() const override {
    return optim::Optimizer(optim::AdamW{.lr = 5e-5}).with(optim::no_decay_for_vectors());
  }
  bool save(const fs::path& folder) const override { return io::save(*model_, folder), true; }

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
    if (o.hidden || !o.width) settings.hidden = c.hidden;
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
