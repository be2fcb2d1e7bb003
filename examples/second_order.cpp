// examples/second_order.cpp: gradients are graphs, so they can be differentiated again.
#include <ebb/ebb.h>

#include <iostream>

using namespace ebb;

int main() {
  const Tensor x = Tensor::from(std::vector<double>{0.5, -1.0, 2.0}, {3});
  const Tensor loss = sum(exp(x) * sin(x));

  const Tensor gradient = grad(loss, {x})[0];  // a tensor like any other
  const Tensor of_its_norm = grad(sum(gradient * gradient), {x})[0];

  const Tensor direction = Tensor::from(std::vector<double>{1.0, 0.0, 0.0}, {3});
  const Tensor product = hessian_vector_product(loss, std::vector{x}, std::vector{direction})[0];

  for (const Tensor& t : {gradient, of_its_norm, product}) {
    for (double value : t.to_vector<double>()) std::cout << value << " ";
    std::cout << "\n";
  }
}
