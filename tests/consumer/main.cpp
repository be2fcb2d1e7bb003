// The slope of Σ x² at x = (1, 2, 3), summed: 2 · (1 + 2 + 3) = 12.
#include <ebb/ebb.h>

#include <iostream>

int main() {
  const ebb::Tensor x = ebb::Tensor::from(std::vector<float>{1, 2, 3}, {3});
  const ebb::Tensor slope = ebb::grad(ebb::sum(ebb::square(x)), {x})[0];
  std::cout << ebb::eval(ebb::sum(slope)).item() << '\n';
}
