// examples/module_loop.cpp: a model of modules, trained by a loop by hand with momentum.
#include <ebb/ebb.h>

#include <iostream>

using namespace ebb;

struct Classifier : nn::Module<Classifier> {
  nn::Conv2d in{at("in"), 1, 8, 3};  // (N, 1, 5, 5) to (N, 8, 3, 3)
  nn::BatchNorm2d norm{at("norm"), 8};
  nn::Dropout drop{at("drop"), 0.1};
  nn::Linear out{at("out"), 8 * 3 * 3, 4};
  Tensor forward(const Tensor& x) { return out(drop(flatten(relu(norm(in(x))), 1))); }
};

int main() {
  const auto images = std::make_shared<data::GaussianImages>(data::GaussianImageOptions{
      .classes = 4, .channels = 1, .height = 5, .width = 5, .separation = 4.0, .images = 4000});
  data::Loader loader(images, {.batch = 50, .seed = 1});
  auto model = make<Classifier>(device::cpu, f32);

  std::vector<Variable> weights;
  std::vector<Tensor> wrt, momentum;
  for (const nn::NamedVariable& parameter : model.trainable_parameters()) {
    parameter.variable.materialise(1);  // computes the initial value, drawn from seed 1
    weights.push_back(parameter.variable), wrt.push_back(parameter.variable);
    momentum.push_back(eval(zeros(parameter.shape())));
  }

  for (std::uint64_t step = 1; step <= 200; ++step) {
    const Batch batch = loader.next();
    // In training mode: dropout draws, and batch norm collects its running statistics.
    nn::ForwardScope training(nn::Mode::train);
    const Tensor loss = cross_entropy(model(batch.x()), batch.y());
    const std::vector<Tensor> slopes = grad(loss, wrt);
    std::vector<Tensor> wanted{loss};
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Tensor moved = 0.9 * momentum[i] + slopes[i];
      wanted.insert(wanted.end(), {moved, weights[i] - 0.05 * moved});
    }
    std::vector<Update> statistics = training.updates();
    for (const Update& update : statistics) wanted.push_back(update.value);
    // All at once, so that forward runs once; the seed decides what dropout draws.
    const std::vector<Tensor> values = eval(wanted, step);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      momentum[i] = values[1 + 2 * i];
      weights[i].assign(values[2 + 2 * i]);
    }
    for (std::size_t i = 0; i < statistics.size(); ++i)
      statistics[i].target.assign(values[1 + 2 * weights.size() + i]);
    if (step % 50 == 0) std::cout << "step " << step << ", loss " << values[0].item() << "\n";
  }

  // Without a ForwardScope modules are in evaluation mode.
  const Batch batch = loader.next();
  const Tensor right = equal(argmax(model(batch.x()), -1), cast(batch.y(), i64));
  std::cout << "accuracy " << mean(cast(right, f32)).item() << "\n";
}
