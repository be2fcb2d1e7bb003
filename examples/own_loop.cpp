// examples/own_loop.cpp: a training loop by hand, with grad and eval.
#include <ebb/ebb.h>

#include <iostream>

using namespace ebb;

int main() {
  // y = 3 x - 1, to be found from 64 points.
  const Tensor x = eval(random_uniform({64, 1}, -1.0, 1.0, f32)), y = eval(3.0 * x - 1.0);
  Tensor weight = eval(zeros({1, 1})), bias = eval(zeros({1}));
  for (int step = 0; step < 200; ++step) {
    const Tensor loss = mean(square(matmul(x, weight) + bias - y));
    const std::vector<Tensor> slopes = grad(loss, {weight, bias});
    // Both are computed before either is replaced.
    const std::vector<Tensor> steps{weight - 0.3 * slopes[0], bias - 0.3 * slopes[1]};
    const std::vector<Tensor> next = eval(steps);
    weight = next[0], bias = next[1];
  }
  std::cout << "weight " << weight.item() << ", bias " << bias.item() << "\n";
}
