// examples/decay_search/main.cpp: a weight decay for every weight of a logistic regression, by the
// loss on other data and conjugate gradients.
#include <ebb/ebb.h>

#include <cmath>
#include <iostream>

using namespace ebb;

constexpr std::int64_t features = 20, useful = 4;

// Labels depend on the first four features; the rest are noise that a small set invites to fit.
Batch points(std::int64_t count, std::uint64_t key) {
  const Tensor x =
      eval(random_normal({count, features}, 0.0, 1.0, f32, device::cpu, RandomKey{key}));
  const Tensor noise = random_normal({count}, 0.0, 0.5, f32, device::cpu, RandomKey{key + 1});
  const Tensor y = cast(greater(sum(slice(x, 1, 0, useful), {1}) + noise, zeros({count})), f32);
  return {{x, eval(y)}};
}

struct Decay : nn::Module<Decay> {
  Variable log_decay = parameter("log_decay", {1, features}, nn::Initial::constant(-4.0));
};

// A problem whose every batch is the whole set.
struct WholeSet : mlo::Problem {
  WholeSet(const char* name, nn::ModuleBase& module, const optim::Optimizer& optimizer,
           const mlo::Config& config, Batch all)
      : Problem(name, module, optimizer, {config, optim::constant(), {}}), set(std::move(all)) {}
  Batch get_batch() override { return set; }
  std::vector<TensorType> batch_types() const override { return set.types(); }
  Batch set;
};

Tensor logistic_loss(nn::Linear& net, const Batch& b) {
  return bce_with_logits(reshape(net(b.x()), {-1}), b.y());
}

struct Regression : WholeSet {
  using WholeSet::WholeSet;
  mlo::StepOutput training_step(const Batch& b) override {
    auto& net = static_cast<nn::Linear&>(module());
    const Tensor decay = exp(static_cast<Decay&>(other("decay").module()).log_decay);
    return logistic_loss(net, b) + sum(decay * square(net.weight)) * 0.5;
  }
};

struct DecaySearch : WholeSet {
  using WholeSet::WholeSet;
  mlo::StepOutput training_step(const Batch& b) override {
    return logistic_loss(static_cast<nn::Linear&>(other("regression").module()), b);
  }
};

int main() {
  nn::Linear net(nn::root_place(), features, 1, nn::Bias::no);
  Decay decay;
  Regression regression("regression", net, optim::SGD{.lr = 0.5},
                        {.type = mlo::Method::cg, .unroll_steps = 20, .cg_iterations = 10},
                        points(60, 1));
  DecaySearch search("decay", decay, optim::Adam{.lr = 0.1}, {}, points(60, 11));
  mlo::Engine engine({&regression, &search},
                     {.u2l = {{"decay", {"regression"}}}, .l2u = {{"regression", {"decay"}}}});

  EvalStep test(net, [&](const Batch& b) { return std::vector{logistic_loss(net, b)}; });
  const Batch unseen = points(2000, 21);
  double first = 0.0;
  for (int step = 1; step <= 2000; ++step) {
    engine.train_step();
    if (step == 20) first = test(unseen)[0];  // trained, and the decays as they started
  }
  const double last = test(unseen)[0];
  double for_useful = 0.0, for_noise = 0.0;
  const std::vector<float> logs = decay.log_decay.to_vector<float>();
  for (std::size_t i = 0; i < logs.size(); ++i)
    (i < useful ? for_useful : for_noise) +=
        logs[i] / static_cast<double>(i < useful ? useful : features - useful);
  std::cout << "test loss " << first << " with equal decays, " << last << " with learned ones\n"
            << "log decay of useful weights " << for_useful << ", of noise " << for_noise << "\n";
  return last < 0.9 * first && for_noise > for_useful + 1.0 ? 0 : 1;
}
