// examples/implicit_maml/main.cpp: a starting point from which a net learns a new sine wave from
// ten points (implicit MAML, Rajeswaran et al., 2019).
#include <ebb/ebb.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numbers>
#include <random>

using namespace ebb;

struct Net : nn::Module<Net> {
  nn::Linear in{at("in"), 1, 40}, middle{at("middle"), 40, 40}, out{at("out"), 40, 1};
  Tensor forward(const Tensor& x) { return out(tanh(middle(tanh(in(x))))); }
};

// y = a sin(x + p); every task has its own a and p.
struct Tasks {
  std::mt19937 random{1};
  double amplitude = 1.0, phase = 0.0;

  void next() {
    amplitude = std::uniform_real_distribution(0.5, 2.0)(random);
    phase = std::uniform_real_distribution(0.0, std::numbers::pi)(random);
  }
  Batch points(int count) {
    std::vector<float> x, y;
    for (int i = 0; i < count; ++i) {
      x.push_back(std::uniform_real_distribution(-3.0f, 3.0f)(random));
      y.push_back(static_cast<float>(amplitude * std::sin(x.back() + phase)));
    }
    return {{Tensor::from(x, {count, 1}), Tensor::from(y, {count, 1})}};
  }
};

constexpr int shots = 10, queries = 20, inner_steps = 10;

struct Adapt : mlo::Problem {
  Adapt(Net& net, Net& start, Tasks& t)
      : Problem("adapt", net, optim::SGD{.lr = 0.05},
                {{.type = mlo::Method::cg, .unroll_steps = inner_steps, .cg_iterations = 5},
                 optim::constant(),
                 {}}),
        own(net),
        meta(start),
        tasks(t) {}

  // A new task: its points, and the shared starting point.
  void on_inner_loop_start() override {
    tasks.next();
    support = tasks.points(shots);
    const auto from = meta.parameters(), to = own.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) {
      Variable variable = to[i].variable;
      variable.assign(from[i].variable);
    }
  }
  Batch get_batch() override { return support; }

  // The task's loss, and a pull towards the starting point: what makes the solution depend on it.
  mlo::StepOutput training_step(const Batch& b) override {
    Tensor distance;
    const auto from = meta.parameters(), to = own.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) {
      const Tensor part = sum_squares(to[i].variable - from[i].variable);
      distance = distance ? distance + part : part;
    }
    return mse_loss(own(b.x()), b.y()) + distance * 0.25;
  }

  Net &own, &meta;
  Tasks& tasks;
  Batch support;
};

struct Meta : mlo::Problem {
  Meta(Net& start, Adapt& a) : Problem("meta", start, optim::Adam{.lr = 0.003}), adapt(a) {}
  Batch get_batch() override { return adapt.tasks.points(queries); }
  mlo::StepOutput training_step(const Batch& b) override {
    return mse_loss(adapt.own(b.x()), b.y());
  }
  Adapt& adapt;
};

int main(int argc, char** argv) {
  const int tasks = argc > 1 ? std::atoi(argv[1]) : 600;
  Tasks source;
  Net net, start;
  Adapt adapt(net, start, source);
  Meta meta(start, adapt);
  mlo::Engine engine({&adapt, &meta}, {.u2l = {{"meta", {"adapt"}}}, .l2u = {{"adapt", {"meta"}}}});
  // Every task is new, so the loss of the level above is one on tasks that were never seen.
  double first = 0.0, last = 0.0;
  for (int task = 0; task < tasks; ++task) {
    for (int i = 0; i < inner_steps; ++i) engine.train_step();
    if (task < 50) first += meta.last().at("loss") / 50.0;
    if (task >= tasks - 50) last += meta.last().at("loss") / 50.0;
  }
  std::cout << "loss on a new task after " << inner_steps << " steps on " << shots
            << " points: " << first << " at first, " << last << " after " << tasks << " tasks\n";
  return last < 0.5 * first ? 0 : 1;
}
