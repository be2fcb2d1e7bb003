// examples/betty_tutorial/main.cpp: Betty's data reweighting with a classifier of one's own.
#include <ebb/ebb.h>

#include <cstdlib>
#include <iostream>

using namespace ebb;

// --- The modules

struct Net : nn::Module<Net> {
  nn::Conv2d conv{at("conv"), 1, 16, 3};  // (N, 1, 5, 5) to (N, 16, 3, 3)
  nn::Linear head{at("head"), 16 * 3 * 3, 4};
  Tensor forward(const Tensor& x) { return head(flatten(relu(conv(x)), 1)); }
};

// The weight of an item, from its loss.
struct WeightNet : nn::Module<WeightNet> {
  nn::Linear in{at("in"), 1, 100}, out{at("out"), 100, 1};
  Tensor forward(const Tensor& loss) { return sigmoid(out(relu(in(loss)))); }
};

// --- The problems

struct Reweight;

struct Classifier : mlo::Problem {
  using Problem::Problem;
  Tensor forward(const Tensor& x) { return static_cast<Net&>(module())(x); }
  mlo::StepOutput training_step(const Batch& batch) override;
};

struct Reweight : mlo::Problem {
  using Problem::Problem;
  Tensor forward(const Tensor& loss) { return static_cast<WeightNet&>(module())(loss); }
  mlo::StepOutput training_step(const Batch& batch) override {
    const Tensor outputs = other<Classifier>("classifier").forward(batch.x());
    const Tensor loss = cross_entropy(outputs, batch.y());
    const Tensor right = equal(argmax(outputs, -1), cast(batch.y(), i64));
    return {loss, {{"acc", mean(cast(right, f32))}}};
  }
};

mlo::StepOutput Classifier::training_step(const Batch& batch) {
  const Tensor outputs = forward(batch.x());
  const Tensor losses = cross_entropy(outputs, batch.y(), {.reduction = Reduction::none});
  const Tensor loss = reshape(losses, {-1, 1});
  const Tensor weight = other<Reweight>("reweight").forward(stop_gradient(loss));
  return mean(weight * loss);
}

// --- The engine

struct ReweightingEngine : mlo::Engine {
  ReweightingEngine(Net& net, data::DatasetPtr test, std::vector<mlo::Problem*> problems,
                    const mlo::Dependencies& dependencies, const mlo::EngineConfig& config)
      : Engine(std::move(problems), dependencies, config),
        loader_(test, {.batch = test->size(), .shuffle = false}),
        right_(net, [&net](const Batch& b) {
          return std::vector{mean(cast(equal(argmax(net(b.x()), -1), cast(b.y(), i64)), f32))};
        }) {}

  mlo::Stats validation() override { return {{"acc", accuracy()}}; }
  double accuracy() { return right_(loader_.next())[0]; }

 private:
  data::Loader loader_;
  EvalStep right_;
};

// --- The data: four classes of images, of which the last has a hundredth of the first's items.

struct Data {
  data::DatasetPtr train, meta, test;
};

Data make_data() {
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
  return {std::make_shared<data::Subset>(images, parts.train),
          std::make_shared<data::Subset>(images, parts.meta),
          data::Subset::range(images, trained, trained + tested)};
}

mlo::LoaderPtr batches(const data::DatasetPtr& data) {
  // Batches of one shape have one plan; a smaller last one would need another.
  return std::make_shared<data::Loader>(
      data, data::LoaderOptions{.batch = 100, .last = data::LastBatch::drop});
}

int main(int argc, char** argv) {
  set_threads(1);  // tensors this small are not worth sharing out
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 600;
  const Data data = make_data();
  auto net = make<Net>(device::cpu, f32);
  auto weight_net = make<WeightNet>(device::cpu, f32);

  Classifier classifier("classifier", net, optim::SGD{.lr = 0.05, .momentum = 0.9},
                        {.config = {.type = mlo::Method::darts, .unroll_steps = 1},
                         .loaders = {batches(data.train)}});
  Reweight reweight("reweight", weight_net, optim::Adam{.lr = 0.01},
                    {.loaders = {batches(data.meta)}});
  const mlo::EngineConfig config{.train_iters = steps, .valid_step = 100, .progress = true};
  const mlo::Dependencies dependencies{.u2l = {{"reweight", {"classifier"}}},
                                       .l2u = {{"classifier", {"reweight"}}}};
  ReweightingEngine engine(net, data.test, {&classifier, &reweight}, dependencies, config);
  std::cout << "planned peak " << to_string(engine.plan().peak) << "\n";
  engine.run();
  std::cout << "balanced accuracy " << engine.accuracy() << "\n";
}
