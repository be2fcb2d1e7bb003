// examples/bilevel_pruning/main.cpp: pruning as an upper level. The lower level trains a network
// whose hidden neurons are multiplied by masks; the upper level learns the masks by the loss on
// other data and a price for every neuron that stays (the structure of Zhang et al., 2022).
#include <ebb/ebb.h>

#include <algorithm>
#include <iostream>

using namespace ebb;

constexpr std::int64_t features = 8, hidden = 24, useful = 4;

Tensor normal(const Shape& shape, std::uint64_t key) {
  return random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{key});
}

// The target is a function of four directions: a network of four neurons computes it.
Batch points(std::int64_t count, std::uint64_t key) {
  const Tensor x = eval(normal({count, features}, key));
  const Tensor y = sum(tanh(matmul(x, normal({features, useful}, 900))), {1});
  return {{x, eval(y)}};
}

struct Masks : nn::Module<Masks> {
  Variable scores = parameter("scores", {hidden}, nn::Initial::constant(1.0));
  Tensor forward() const { return sigmoid(scores * 4.0); }
};

struct Net : nn::Module<Net> {
  nn::Linear in{at("in"), features, hidden}, out{at("out"), hidden, 1};
  Tensor forward(const Tensor& x, const Tensor& masks) {
    return reshape(out(tanh(in(x)) * masks), {-1});
  }
  Tensor loss(const Batch& b, const Tensor& masks) {
    return mean(square((*this)(b.x(), masks) - b.y()));
  }
};

// A problem whose every batch is the whole set.
struct WholeSet : mlo::Problem {
  WholeSet(const char* name, nn::ModuleBase& module, const optim::Optimizer& optimizer,
           const mlo::Config& config, Batch all)
      : Problem(name, module, optimizer, {config, optim::constant(), {}}), set(std::move(all)) {}
  Batch get_batch() override { return set; }
  std::vector<TensorType> batch_types() const override { return set.types(); }
  Tensor loss(const Batch& b) const {
    return static_cast<Net&>(other("train").module())
        .loss(b, static_cast<Masks&>(other("prune").module())());
  }
  Batch set;
};

struct Train : WholeSet {
  using WholeSet::WholeSet;
  mlo::StepOutput training_step(const Batch& b) override {
    const auto& net = static_cast<Net&>(module());
    return loss(b) + (sum_squares(net.in.weight) + sum_squares(net.out.weight)) * 1e-3;
  }
};

struct Prune : WholeSet {
  using WholeSet::WholeSet;
  static constexpr double price = 0.05;  // of all neurons together
  mlo::StepOutput training_step(const Batch& b) override {
    return loss(b) + mean(static_cast<Masks&>(module())()) * price;
  }
};

int main() {
  const Batch train_set = points(400, 1), other_set = points(400, 11), unseen = points(2000, 21);
  Net net;
  Masks masks;
  Train train("train", net, optim::Adam{.lr = 0.01},
              {.type = mlo::Method::darts, .unroll_steps = 2}, train_set);
  Prune prune("prune", masks, optim::Adam{.lr = 0.01}, {}, other_set);
  mlo::Engine engine({&prune, &train},
                     {.u2l = {{"prune", {"train"}}}, .l2u = {{"train", {"prune"}}}});
  for (int step = 0; step < 10000; ++step) engine.train_step();

  // Neurons with the smallest masks go, others count in full from here on.
  const std::vector<float> learned = masks().to_vector<float>();
  std::vector<float> kept(learned.size());
  std::transform(learned.begin(), learned.end(), kept.begin(),
                 [](float m) { return m > 0.1f ? 1.0f : 0.0f; });
  const auto stay = std::count(kept.begin(), kept.end(), 1.0f);
  const Tensor hard = Tensor::from(kept, {hidden}), all = eval(ones({hidden}));
  // The weights follow the masks that became 0 or 1; a dense network is trained as long.
  const auto trained = [&](Net& model, const Tensor& fixed, int steps) {
    TrainStep step(model, optim::Adam{.lr = 0.01},
                   [&](const Batch& b) { return model.loss(b, fixed); });
    for (int i = 0; i < steps; ++i) step(train_set);
    EvalStep test(model, [&](const Batch& b) { return std::vector{model.loss(b, fixed)}; });
    return test(unseen)[0];
  };
  const double pruned = trained(net, hard, 2000);
  Net dense_net;
  const double dense = trained(dense_net, all, 12000);
  std::cout << stay << " of " << hidden << " neurons stay\n"
            << "test loss dense " << dense << ", pruned " << pruned << "\n";
  return stay > 0 && stay <= hidden / 2 && pruned < dense ? 0 : 1;
}
