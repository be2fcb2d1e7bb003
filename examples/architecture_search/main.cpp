// examples/architecture_search/main.cpp: which functions a net should be made of (differentiable
// architecture search, Liu, Simonyan and Yang, 2019), on data from a net whose functions are known.
#include <ebb/ebb.h>

#include <array>
#include <cstdlib>
#include <iostream>

using namespace ebb;

constexpr std::int64_t inputs = 6, width = 16;
constexpr std::array names{"identity", "relu", "tanh", "sin"};

std::array<Tensor, 4> candidates(const Tensor& x) { return {x, relu(x), tanh(x), sin(x * 2.0)}; }

// How much of each candidate is in each of two places.
struct Architecture : nn::Module<Architecture> {
  Variable first = parameter("first", {4}, nn::Initial::constant(0.0)),
           second = parameter("second", {4}, nn::Initial::constant(0.0));
};

Tensor mixed(const Tensor& x, const Tensor& scores) {
  const std::array<Tensor, 4> made = candidates(x);
  const Tensor shares = softmax(scores);
  Tensor total;
  for (int i = 0; i < 4; ++i) {
    const Tensor part = made[static_cast<std::size_t>(i)] * slice(shares, 0, i, i + 1);
    total = total ? total + part : part;
  }
  return total;
}

struct Net : nn::Module<Net> {
  nn::Linear in{at("in"), inputs, width}, middle{at("middle"), width, width},
      out{at("out"), width, 1};
  Tensor forward(const Tensor& x, const Architecture& a) {
    return out(mixed(middle(mixed(in(x), a.first)), a.second));
  }
};

// The teacher: sin in the first place, relu in the second.
Batch points(std::int64_t count, std::uint64_t key) {
  const auto normal = [](const Shape& shape, double deviation, std::uint64_t k) {
    return random_normal(shape, 0.0, deviation, f32, device::cpu, RandomKey{k});
  };
  const Tensor x = eval(normal({count, inputs}, 1.0, key));
  const Tensor hidden = sin(matmul(x, normal({inputs, 4}, 0.4, 900)) * 2.0);
  const Tensor y = matmul(relu(matmul(hidden, normal({4, 8}, 0.7, 901))), normal({8, 1}, 0.7, 902));
  return {{x, eval(y)}};
}

struct WholeSet : mlo::Problem {
  WholeSet(const char* name, nn::ModuleBase& module, const optim::Optimizer& optimizer, Batch all)
      : Problem(name, module, optimizer), set(std::move(all)) {}
  Batch get_batch() override { return set; }
  std::vector<TensorType> batch_types() const override { return set.types(); }
  Tensor loss(const Batch& b) const {
    auto& net = static_cast<Net&>(other("weights").module());
    return mse_loss(net(b.x(), static_cast<Architecture&>(other("architecture").module())), b.y());
  }
  mlo::StepOutput training_step(const Batch& b) override { return loss(b); }
  Batch set;
};

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 600;
  Net net;
  Architecture architecture;
  WholeSet weights("weights", net, optim::Adam{.lr = 0.01}, points(400, 1));
  WholeSet search("architecture", architecture, optim::Adam{.lr = 0.02}, points(400, 2));
  mlo::Engine engine({&weights, &search}, {.u2l = {{"architecture", {"weights"}}},
                                           .l2u = {{"weights", {"architecture"}}}});
  engine.train_step();
  const double first = search.last().at("loss");
  for (int i = 1; i < steps; ++i) engine.train_step();
  std::cout << "validation loss " << first << " at first, " << search.last().at("loss")
            << " at last\n";
  std::array<int, 2> chosen{};
  const std::array<Variable, 2> places{architecture.first, architecture.second};
  for (std::size_t place = 0; place < 2; ++place) {
    const std::vector<float> shares = softmax(places[place]).to_vector<float>();
    std::cout << "place " << place + 1 << ":";
    for (std::size_t i = 0; i < 4; ++i) {
      std::cout << " " << names[i] << " " << shares[i];
      if (shares[i] > shares[static_cast<std::size_t>(chosen[place])])
        chosen[place] = static_cast<int>(i);
    }
    std::cout << "\n";
  }
  return chosen[0] == 3 ? 0 : 1;  // the sine is found
}
