// examples/own_model.cpp: a model of your own, trained by a plan that is known before it starts.
#include <ebb/ebb.h>

#include <iostream>

using namespace ebb;

struct Classifier : nn::Module<Classifier> {
  nn::Linear in{at("in"), 3 * 32 * 32, 200}, out{at("out"), 200, 10};
  Tensor forward(const Tensor& x) { return out(relu(in(flatten(x, 1)))); }
};

int main() {
  const auto images = std::make_shared<data::GaussianImages>();  // generated, with a known limit
  data::Loader loader(images, {.batch = 64, .seed = 1});

  auto model = make<Classifier>(device::cpu, f32);  // made in place, at its precision
  TrainStep step(model, optim::AdamW{.lr = 1e-3},
                 [&](const Batch& b) { return cross_entropy(model(b.x()), b.y()); });

  std::cout << step.plan(images->types(64));  // the exact peak, before the first step
  double loss = 0.0;
  for (int i = 0; i < 100; ++i) loss = step(loader.next()).loss;
  std::cout << "loss " << loss << " after 100 steps\n";
}
