// Data reweighting (Shu et al., 2019, as in Betty's tutorial). The lower level trains a classifier
// on long-tailed images with weighted losses. The upper level trains the net that gives the
// weights, by the classifier's loss on a small balanced set.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ebb/data/generated.h"
#include "ebb/data/images.h"
#include "ebb/data/part.h"
#include "ebb/error.h"
#include "ebb/models/meta_weight_net.h"
#include "ebb/models/mlp.h"
#include "ebb/models/resnet.h"
#include "workloads/accuracy.h"
#include "workloads/families.h"
#include "workloads/image_sets.h"

namespace ebb::workloads {
namespace {

using LoaderPtr = mlo::LoaderPtr;

struct Images {
  data::DatasetPtr train, meta, test;
  std::string source, test_source;
  std::int64_t channels = 3, height = 32, width = 32, classes = 10;
  std::optional<Limit> limit;
  // How the sets were made: whether nothing was removed to make them long-tailed, or else by how
  // much.
  bool as_it_is = false;
  std::optional<double> imbalance;
  std::int64_t meta_items = 0;
  std::optional<std::int64_t> scaled_to;  // pixels, of image files
};

data::LongTailOptions long_tail_of(const MultilevelOptions& o) {
  return {.imbalance = o.imbalance.value_or(usual_imbalance),
          .meta = o.meta.value_or(usual_meta),
          .seed = o.common.seed};
}

// For a folder of image files: a tenth of the rarest class's items for each class.
std::int64_t balanced_items(const data::ImageSet& images) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(images.classes));
  for (const std::uint8_t label : images.labels) ++counts[label];
  const std::int64_t rarest = *std::min_element(counts.begin(), counts.end());
  return images.classes * std::max<std::int64_t>(1, rarest / 10);
}

// The items below `count` that are not among these.
std::vector<std::int64_t> all_but(const std::vector<std::int64_t>& items, std::int64_t count) {
  std::vector<bool> taken(static_cast<std::size_t>(count));
  for (const std::int64_t item : items) taken[static_cast<std::size_t>(item)] = true;
  std::vector<std::int64_t> rest;
  for (std::int64_t i = 0; i < count; ++i)
    if (!taken[static_cast<std::size_t>(i)]) rest.push_back(i);
  return rest;
}

// Balanced sets are made long-tailed. A folder of image files is used as it is, unless an imbalance
// is requested.
Images from_files(const MultilevelOptions& o) {
  const ImageSets sets = read_image_sets(*o.common.data, o.common.image_size);
  const data::ImageOptions plain = sets.plain();
  const auto images = std::make_shared<data::ImageDataset>(sets.train, sets.varied());
  data::LongTailOptions tail = long_tail_of(o);
  Images result;
  if (sets.scaled_to) tail.meta = o.meta.value_or(balanced_items(*sets.train));
  result.as_it_is = sets.scaled_to && !o.imbalance;
  if (!result.as_it_is) result.imbalance = tail.imbalance;
  if (result.as_it_is) tail.imbalance = 1.0;
  data::LongTail parts = data::long_tail(*sets.train, tail);
  if (result.as_it_is) parts.train = all_but(parts.meta, sets.train->size());
  result.meta_items = tail.meta, result.scaled_to = sets.scaled_to;
  result.channels = sets.train->channels, result.height = sets.train->height;
  result.width = sets.train->width, result.classes = sets.train->classes;
  result.source = sets.train_source, result.test_source = sets.test_source;
  result.train = std::make_shared<data::Subset>(images, std::move(parts.train));
  result.meta = std::make_shared<data::Subset>(images, std::move(parts.meta));
  result.test = std::make_shared<data::ImageDataset>(sets.test, plain);
  return result;
}

// The last 2000 images are for testing. All their classes are equally likely.
Images generated(const MultilevelOptions& o) {
  constexpr std::int64_t tests = 2000;
  data::GaussianImageOptions source;
  source.classes = o.common.classes.value_or(10);
  constexpr std::int64_t most_classes = 256;  // labels are kept as bytes
  if (source.classes > most_classes)
    throw ValueError(fmt::format("the option classes is at most {} for reweight, but is {}",
                                 most_classes, source.classes));
  source.separation = 4.0;
  source.seed = o.common.seed;
  const auto images = std::make_shared<data::GaussianImages>(source);
  std::vector<std::uint8_t> labels;
  for (std::int64_t i = 0; i < images->size() - tests; ++i)
    labels.push_back(static_cast<std::uint8_t>(images->label(i)));
  const data::LongTail parts = data::long_tail(labels, source.classes, long_tail_of(o));
  Images result;
  result.classes = source.classes;
  result.imbalance = long_tail_of(o).imbalance, result.meta_items = long_tail_of(o).meta;
  result.source = result.test_source = "generated images";
  result.train = std::make_shared<data::Subset>(images, parts.train);
  result.meta = std::make_shared<data::Subset>(images, parts.meta);
  result.test = data::Subset::range(images, images->size() - tests, images->size());
  result.limit = Limit{Limit::Kind::accuracy, images->best_accuracy()};
  return result;
}

// A classifier of any type: the module, and the function that computes its logits.
struct Classifier {
  std::unique_ptr<nn::ModuleBase> module;
  std::function<Tensor(const Tensor&)> logits;
};

template <class Model, class Config>
Classifier make_classifier(const Config& config) {
  auto model = std::make_unique<Model>(config);
  Model* net = model.get();
  return {std::move(model), [net](const Tensor& x) { return (*net)(cast(x, net->dtype())); }};
}

Classifier classifier_for(const MultilevelOptions& o, const Images& images, DType dtype) {
  const std::string name = classifier_of(o);
  const nn::MakeScope scope(o.common.device, dtype);
  if (name == "mlp") {
    models::MlpConfig c;
    c.inputs = images.channels * images.height * images.width;
    c.classes = images.classes;
    c.hidden = o.common.hidden.value_or(o.common.width.value_or(c.hidden));
    c.layers = o.common.layers.value_or(c.layers);
    return make_classifier<models::Mlp>(c);
  }
  const auto residual = [&](models::ResNetConfig config) {
    config.channels = images.channels;
    config.layout = o.common.image_layout();
    return make_classifier<models::ResNet>(config);
  };
  if (name == "resnet32") return residual(models::ResNetConfig::resnet32(images.classes));
  if (name == "resnet50") return residual(models::ResNetConfig::resnet50(images.classes));
  throw ValueError(fmt::format("there is no classifier \"{}\"; there are: {}", name,
                               fmt::join(classifier_names(), ", ")));
}

Options used(const MultilevelOptions& o, const Images& images, std::int64_t batch) {
  Options u;
  if (!o.common.data) u.classes = images.classes;
  u.batch = batch;
  u.image_size = images.scaled_to;
  if (classifier_of(o) != "mlp") {
    u.layout = o.common.image_layout();
    return u;
  }
  const models::MlpConfig c;
  u.width = o.common.width;
  u.layers = o.common.layers.value_or(c.layers);
  // One layer has no hidden ones; `width` is the same size by another name.
  if (*u.layers > 1 && !u.width) u.hidden = o.common.hidden.value_or(c.hidden);
  return u;
}

struct ClassifierProblem : mlo::Problem {
  ClassifierProblem(Classifier& classifier, models::MetaWeightNet& weights,
                    const optim::Optimizer& optimizer, const mlo::ProblemOptions& options)
      : Problem("classifier", *classifier.module, optimizer, options),
        classifier_(classifier),
        weights_(weights) {}
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor losses =
        cast(cross_entropy(classifier_.logits(b.x()), b.y(), {.reduction = Reduction::none}), f32);
    // The weights depend on the losses' values only: no gradient flows back from them to the
    // losses.
    const Tensor weights = weights_(cast(stop_gradient(losses), weights_.dtype()));
    return mlo::StepOutput(mean(losses * cast(weights, f32)), {{"unweighted_loss", mean(losses)}});
  }

 private:
  Classifier& classifier_;
  models::MetaWeightNet& weights_;
};

// The baseline: every item has the weight 1, and there is no level above.
struct UnweightedProblem : mlo::Problem {
  UnweightedProblem(Classifier& classifier, const optim::Optimizer& optimizer,
                    const mlo::ProblemOptions& options)
      : Problem("classifier", *classifier.module, optimizer, options), classifier_(classifier) {}
  mlo::StepOutput training_step(const Batch& b) override {
    return cast(cross_entropy(classifier_.logits(b.x()), b.y()), f32);
  }

 private:
  Classifier& classifier_;
};

struct ReweightProblem : mlo::Problem {
  ReweightProblem(Classifier& classifier, models::MetaWeightNet& weights,
                  const optim::Optimizer& optimizer, const mlo::ProblemOptions& options)
      : Problem("reweight", weights, optimizer, options), classifier_(classifier) {}
  mlo::StepOutput training_step(const Batch& b) override {
    return cast(cross_entropy(classifier_.logits(b.x()), b.y()), f32);
  }

 private:
  Classifier& classifier_;
};

class Reweight : public MultilevelWorkload {
 public:
  explicit Reweight(const MultilevelOptions& o) {
    const Images images = o.common.data ? from_files(o) : generated(o);
    test = images.test;
    limit = images.limit;
    batch_size = o.common.batch.value_or(100);
    if (batch_size < 1)
      throw ValueError(fmt::format("the option batch must be at least 1, but is {}", batch_size));
    parts = {{"train",
              {images.source + (images.as_it_is ? ", without the balanced part" : ", long-tailed"),
               images.train->size()}},
             {"meta", {images.source + ", balanced", images.meta->size()}},
             {"test", {images.test_source, images.test->size()}}};
    require_items(parts["train"], batch_size, "a batch of the level classifier");
    if (o.unweighted)
      parts.erase("meta");
    else
      require_items(parts["meta"], batch_size, "a batch of the level reweight");
    require_items(parts["test"], 1, "testing");
    classifier_ = classifier_for(o, images, level(o, "classifier").dtype());
    classes_ = images.classes;
    settings.common = used(o, images, batch_size);
    settings.imbalance = images.imbalance, settings.meta = images.meta_items;
    {
      const nn::MakeScope scope(o.common.device, level(o, "reweight").dtype());
      weights_ = std::make_unique<models::MetaWeightNet>();
    }
    const auto options = [&](const char* name, const data::DatasetPtr& data, std::uint64_t seed) {
      const auto loader = std::make_shared<data::Loader>(
          o.ranks.any() ? data::part_of_batches(data, batch_size, o.ranks) : data,
          training_loader(batch_size, seed, o.common.device));
      return mlo::ProblemOptions{level(o, name).over(mlo::Config{}), optim::constant(), {loader}};
    };
    const optim::Optimizer lower_rule =
        level(o, "classifier").over(optim::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4});
    const mlo::ProblemOptions lower_options = options("classifier", images.train, o.common.seed);
    if (o.unweighted) {
      lower_ = std::make_unique<UnweightedProblem>(classifier_, lower_rule, lower_options);
      return;
    }
    lower_ = std::make_unique<ClassifierProblem>(classifier_, *weights_, lower_rule, lower_options);
    upper_ = std::make_unique<ReweightProblem>(classifier_, *weights_,
                                               level(o, "reweight").over(optim::Adam{.lr = 1e-5}),
                                               options("reweight", images.meta, o.common.seed + 1));
  }
  std::vector<mlo::Problem*> problems() override {
    return upper_ ? std::vector<mlo::Problem*>{lower_.get(), upper_.get()}
                  : std::vector<mlo::Problem*>{lower_.get()};
  }
  mlo::Dependencies dependencies() const override {
    if (!upper_) return {};
    return {.u2l = {{"reweight", {"classifier"}}}, .l2u = {{"classifier", {"reweight"}}}};
  }
  nn::ModuleBase& model() override { return *classifier_.module; }
  std::vector<Tensor> judge(const Batch& b) override {
    const Tensor logits = classifier_.logits(b.x());
    return {cross_entropy(logits, b.y()), share_right(logits, b.y())};
  }
  std::vector<Tensor> judge_by_class(const Batch& b) override {
    const Tensor labels = cast(b.y(), i64), answers = argmax(classifier_.logits(b.x()), -1);
    const Tensor right = cast(equal(answers, labels), f32);
    std::vector<Tensor> shares;
    for (std::int64_t c = 0; c < classes_; ++c) {
      const Tensor mine = cast(equal(labels, full_like(labels, static_cast<double>(c))), f32);
      shares.push_back(mean(mine));
      shares.push_back(mean(mine * right));
    }
    return shares;
  }
  std::int64_t classes() const override { return classes_; }

 private:
  static LevelOptions level(const MultilevelOptions& o, const char* name) {
    const auto found = o.levels.find(name);
    return found == o.levels.end() ? LevelOptions{} : found->second;
  }

  Classifier classifier_;
  std::int64_t classes_ = 0;
  std::unique_ptr<models::MetaWeightNet> weights_;
  std::unique_ptr<mlo::Problem> lower_;
  std::unique_ptr<ReweightProblem> upper_;
};

}  // namespace

std::unique_ptr<MultilevelWorkload> make_reweight(const MultilevelOptions& options) {
  return std::make_unique<Reweight>(options);
}

std::vector<std::string> classifier_names() { return {"mlp", "resnet32", "resnet50"}; }

std::string classifier_of(const MultilevelOptions& options) {
  return options.classifier.value_or(classifier_names().front());
}

}  // namespace ebb::workloads
