// Classification workloads: bert on labelled text, resnet and mlp on images.
#include <fmt/core.h>

#include "data/gzip.h"
#include "ebb/data/generated.h"
#include "ebb/data/image_folder.h"
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

// Splits a source: its last items are held out for testing.
void split_source(Workload& workload, const data::DatasetPtr& source, const std::string& name) {
  const std::int64_t count = source->size(), cut = count - held_out(count, name);
  workload.train = data::Subset::range(source, 0, cut);
  workload.test = data::Subset::range(source, cut, count);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return DataPart{fmt::format("{}, items {} to {}", name, begin, end)};
  };
  workload.train_part = part(0, cut), workload.test_part = part(cut, count);
}

struct ImageShape {
  std::int64_t channels = 3, height = 32, width = 32, classes = 10;
};

// Images [begin, end) of a set.
data::ImageSetPtr part_of(const data::ImageSet& whole, std::int64_t begin, std::int64_t end) {
  auto part = std::make_shared<data::ImageSet>(
      data::ImageSet{whole.channels, whole.height, whole.width, whole.classes, {}, {}});
  const std::int64_t each = whole.image_bytes();
  part->pixels.assign(whole.pixels.begin() + begin * each, whole.pixels.begin() + end * each);
  part->labels.assign(whole.labels.begin() + begin, whole.labels.begin() + end);
  return part;
}

// The sets as the workload reads them.
ImageShape use_sets(Workload& workload, const data::ImageSetPtr& train,
                    const data::ImageSetPtr& test, std::int64_t padding, bool flip) {
  data::ImageOptions plain{.normalise = data::channel_statistics(*train)}, varied = plain;
  varied.crop_padding = padding, varied.flip = flip;
  workload.train = std::make_shared<data::ImageDataset>(train, varied);
  workload.test = std::make_shared<data::ImageDataset>(test, plain);
  return {train->channels, train->height, train->width, train->classes};
}

// One image in ten of each class is held out: images are in order of class.
void hold_out(const data::ImageSet& whole, const std::string& name, data::ImageSetPtr& train,
              data::ImageSetPtr& test) {
  auto some = std::make_shared<data::ImageSet>(
      data::ImageSet{whole.channels, whole.height, whole.width, whole.classes, {}, {}});
  auto rest = std::make_shared<data::ImageSet>(*some);
  const std::int64_t each = whole.image_bytes();
  std::vector<std::int64_t> seen(static_cast<std::size_t>(whole.classes));
  for (std::int64_t i = 0; i < whole.size(); ++i) {
    const std::uint8_t label = whole.labels[static_cast<std::size_t>(i)];
    data::ImageSet& to = ++seen[label] % 10 == 0 ? *rest : *some;
    to.pixels.insert(to.pixels.end(), whole.pixels.begin() + i * each,
                     whole.pixels.begin() + (i + 1) * each);
    to.labels.push_back(label);
  }
  if (rest->labels.empty())
    throw ValueError(fmt::format(
        "{}: one image in ten of each class is held out for testing, but no class has ten; a "
        "folder test/ beside train/ can hold the images to test with",
        name));
  train = some, test = rest;
}

// A folder of PNG and JPEG files, with a folder for each class.
ImageShape pictures_from(Workload& workload, const fs::path& folder,
                         std::optional<std::int64_t> image_size, bool augment) {
  const std::int64_t size = image_size.value_or(32);
  const data::ImageFolders parts = data::image_folders(folder);
  const data::ImageFolder whole = data::read_image_folder(parts.train, size);
  const std::string read_as =
      fmt::format("{} classes, scaled to {} × {}", whole.images->classes, size, size);
  data::ImageSetPtr train = whole.images, test;
  if (parts.test.empty()) {
    hold_out(*whole.images, folder.string(), train, test);
    workload.train_part.source =
        fmt::format("{}, {}, without every tenth image", parts.train.string(), read_as);
    workload.test_part.source = fmt::format("{}, every tenth image of a class", folder.string());
  } else {
    test = data::read_image_folder(parts.test, size, &whole).images;
    workload.train_part.source = fmt::format("{}, {}", parts.train.string(), read_as);
    workload.test_part.source = parts.test.string();
  }
  workload.settings.image_size = size;
  const std::int64_t padding = augment ? std::min<std::int64_t>(4, size / 8) : 0;
  return use_sets(workload, train, test, padding, augment);
}

// Reads a folder with CIFAR-10, MNIST or image files. If only one of training and test set is there
// (MNIST's training files are often left out), its last images are held out for testing.
ImageShape images_from(Workload& workload, const fs::path& folder,
                       std::optional<std::int64_t> image_size, bool augment) {
  const auto has = [&](const char* name) {
    return fs::exists(folder / name) || fs::exists(folder / (std::string(name) + ".gz"));
  };
  const bool cifar = has("test_batch.bin") || has("data_batch_1.bin");
  const bool has_train = has(cifar ? "data_batch_1.bin" : "train-images-idx3-ubyte"),
             has_test = has(cifar ? "test_batch.bin" : "t10k-images-idx3-ubyte");
  const auto read = [&](data::Split split) {
    return cifar ? data::read_cifar10(folder, split) : data::read_mnist(folder, split);
  };
  data::ImageSetPtr train, test;
  if (!cifar && !has_train && !has_test && data::is_image_folder(folder))
    return pictures_from(workload, folder, image_size, augment);
  if (has_train == has_test) {  // both; or neither, and reading throws an error naming the file
    train = read(data::Split::train), test = read(data::Split::test);
    workload.train_part.source = fmt::format("{}, the training set", folder.string());
    workload.test_part.source = fmt::format("{}, the test set", folder.string());
  } else {
    const data::ImageSetPtr whole = read(has_train ? data::Split::train : data::Split::test);
    const std::string name =
        fmt::format("{}, the {} set", folder.string(), has_train ? "training" : "test");
    const std::int64_t count = whole->size(), cut = count - held_out(count, name);
    train = part_of(*whole, 0, cut), test = part_of(*whole, cut, count);
    workload.train_part.source = fmt::format("{}, images 0 to {}", name, cut);
    workload.test_part.source = fmt::format("{}, images {} to {}", name, cut, count);
  }
  return use_sets(workload, train, test, augment ? 4 : 0, augment && cifar);
}

// Images from files, or generated images whose best possible accuracy is known.
ImageShape image_data(Workload& workload, const Options& options, bool augment) {
  if (options.data) return images_from(workload, *options.data, options.image_size, augment);
  data::GaussianImageOptions source;
  source.classes = options.classes.value_or(10);
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
      split_source(
          *this,
          std::make_shared<data::LabelledTextDataset>(
              texts, data::LabelledTextOptions{.sequence = sequence, .vocabulary = c.vocabulary}),
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
