// examples/architecture_search/main.cpp: which function a net should be made of (differentiable
// architecture search, Liu, Simonyan and Yang, 2019), on data from nets whose function is known.
#include <ebb/ebb.h>

#include <array>
#include <iostream>

using namespace ebb;

constexpr std::int64_t inputs = 3, width = 12;
constexpr std::array names{"identity", "relu", "tanh", "sin"};

std::array<Tensor, 4> candidates(const Tensor& x) {
  return {x, relu(x), tanh(x * 3.0), sin(x * 3.0)};
}

// How much of each candidate is in the net: a softmax of scores.
struct Architecture : nn::Module<Architecture> {
  Variable scores = parameter("scores", {4}, nn::Initial::constant(0.0));
};

struct Net : nn::Module<Net> {
  nn::Linear in{at("in"), inputs, width}, out{at("out"), width, 1};
  Tensor forward(const Tensor& x, const Architecture& architecture) {
    const Tensor shares = softmax(architecture.scores);
    const std::array<Tensor, 4> made = candidates(in(x));
    Tensor mixed = made[0] * slice(shares, 0, 0, 1);
    for (int i = 1; i < 4; ++i)
      mixed = mixed + made[static_cast<std::size_t>(i)] * slice(shares, 0, i, i + 1);
    return out(mixed);
  }
};

// What a net of four units with one of the functions makes of random points.
Batch points(std::size_t function, std::int64_t count, std::uint64_t key) {
  const auto normal = [](const Shape& shape, std::uint64_t k) {
    return random_normal(shape, 0.0, 0.6, f32, device::cpu, RandomKey{k});
  };
  const Tensor x = eval(normal({count, inputs}, key));
  const Tensor hidden = candidates(matmul(x, normal({inputs, 4}, 900)))[function];
  return {{x, eval(matmul(hidden, normal({4, 1}, 901)))}};
}

// Both levels have the same loss, on sets of their own.
struct WholeSet : mlo::Problem {
  WholeSet(const char* name, nn::ModuleBase& module, const optim::Optimizer& optimizer, Batch all)
      : Problem(name, module, optimizer), set(std::move(all)) {}
  Batch get_batch() override { return set; }
  mlo::StepOutput training_step(const Batch& b) override {
    auto& net = static_cast<Net&>(other("weights").module());
    return mse_loss(net(b.x(), static_cast<Architecture&>(other("architecture").module())), b.y());
  }
  Batch set;
};

int main() {
  set_threads(1);  // tensors this small are not worth sharing out
  int found = 0;
  for (std::size_t truth : {2, 3}) {
    Net net;
    Architecture architecture;
    WholeSet weights("weights", net, optim::Adam{.lr = 0.01}, points(truth, 400, 1));
    WholeSet search("architecture", architecture, optim::Adam{.lr = 0.02}, points(truth, 400, 2));
    mlo::Engine engine({&weights, &search}, {.u2l = {{"architecture", {"weights"}}},
                                             .l2u = {{"weights", {"architecture"}}}});
    for (int i = 0; i < 600; ++i) engine.train_step();

    const std::vector<float> shares = softmax(architecture.scores).to_vector<float>();
    std::size_t best = 0;
    std::cout << "made with " << names[truth] << ":";
    for (std::size_t i = 0; i < shares.size(); ++i) {
      std::cout << " " << names[i] << " " << shares[i];
      if (shares[i] > shares[best]) best = i;
    }
    std::cout << ", validation loss " << search.last().at("loss") << "\n";
    found += best == truth;
  }
  return found == 2 ? 0 : 1;
}
