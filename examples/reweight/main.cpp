// examples/reweight/main.cpp: weights for the items of a long-tailed set, learned on a balanced
// one.
#include <ebb/ebb.h>

#include <cstdlib>
#include <iostream>

using namespace ebb;

// A classifier of images by one linear layer.
using Net = models::Mlp;

struct Classifier : mlo::Problem {
  using Problem::Problem;
  Net& net() const { return static_cast<Net&>(module()); }

  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor losses = cross_entropy(net()(b.x()), b.y(), {.reduction = Reduction::none});
    auto& weight = static_cast<models::MetaWeightNet&>(other("reweight").module());
    return mean(losses * weight(stop_gradient(losses)));  // the losses' values decide the weights
  }
};

struct Reweight : mlo::Problem {
  using Problem::Problem;

  mlo::StepOutput training_step(const Batch& b) override {
    return cross_entropy(other<Classifier>("classifier").net()(b.x()), b.y());
  }
};

// Ten images of the first class for each of the second, and so on down to one in a hundred.
struct Data {
  data::DatasetPtr train, meta, test;

  Data() {
    constexpr std::int64_t trained = 20'000, tested = 2000;
    const auto images = std::make_shared<data::GaussianImages>(
        data::GaussianImageOptions{.classes = 4,
                                   .channels = 1,
                                   .height = 5,
                                   .width = 5,
                                   .separation = 2.0,
                                   .images = trained + tested});
    std::vector<std::uint8_t> labels;
    for (std::int64_t i = 0; i < trained; ++i)
      labels.push_back(static_cast<std::uint8_t>(images->label(i)));
    const data::LongTail parts = data::long_tail(labels, 4, {.imbalance = 100, .meta = 1000});
    train = std::make_shared<data::Subset>(images, parts.train);
    meta = std::make_shared<data::Subset>(images, parts.meta);
    test = data::Subset::range(images, trained, trained + tested);
  }
};

mlo::LoaderPtr batches(const data::DatasetPtr& data, std::uint64_t seed) {
  return std::make_shared<data::Loader>(data, data::LoaderOptions{.batch = 100, .seed = seed});
}

double accuracy(Net& net, const data::DatasetPtr& test) {
  EvalStep right(net, [&](const Batch& b) {
    return std::vector{mean(cast(equal(argmax(net(b.x()), -1), cast(b.y(), i64)), f32))};
  });
  data::Loader loader(test, {.batch = test->size(), .shuffle = false});
  return right(loader.next())[0];
}

int main(int argc, char** argv) {
  set_threads(1);  // tensors this small are not worth sharing out
  const Data data;
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1500;

  Net plain({.inputs = 25, .classes = 4, .layers = 1});
  TrainStep step(plain, optim::SGD{.lr = 0.05, .momentum = 0.9},
                 [&](const Batch& b) { return cross_entropy(plain(b.x()), b.y()); });
  const mlo::LoaderPtr train = batches(data.train, 0);
  for (int i = 0; i < steps; ++i) step(train->next());

  Net net({.inputs = 25, .classes = 4, .layers = 1});
  models::MetaWeightNet weights;
  Classifier classifier(
      "classifier", net, optim::SGD{.lr = 0.05, .momentum = 0.9},
      {{.type = mlo::Method::darts}, optim::constant(), {batches(data.train, 0)}});
  Reweight reweight("reweight", weights, optim::Adam{.lr = 0.01},
                    {{}, optim::constant(), {batches(data.meta, 1)}});
  mlo::Engine engine({&classifier, &reweight},
                     {.u2l = {{"reweight", {"classifier"}}}, .l2u = {{"classifier", {"reweight"}}}},
                     {.train_iters = steps});
  std::cout << "peak of all levels " << to_string(engine.plan().peak) << "\n";
  engine.run();

  const double before = accuracy(plain, data.test), after = accuracy(net, data.test);
  std::cout << "balanced accuracy " << before << " unweighted, " << after << " reweighted\n";
  return after > before + 0.02 ? 0 : 1;
}
