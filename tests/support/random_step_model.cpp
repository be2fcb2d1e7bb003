#include "support/random_step_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

namespace ebb::test {

using namespace planning;
namespace {

class Builder {
 public:
  explicit Builder(std::uint64_t seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  std::int64_t size() { return chance(70) ? 4 + below(5) : 1 + below(24); }
  // Over two decades, in whole numbers so that sums are exact.
  double ms() { return std::round(std::pow(10.0, 1.0 + 2.0 * below(1000) / 1000.0)); }

  int input(std::int64_t bytes) {
    model_.values.push_back({.bytes = bytes, .producer = -1, .positions = {}});
    return static_cast<int>(model_.values.size()) - 1;
  }

  struct Output {
    std::int64_t bytes = 0;
    bool in_arena = true;
  };
  // Returns the number of the step.
  int step(std::vector<int> inputs, const std::vector<Output>& outputs, double ms) {
    const int number = static_cast<int>(model_.steps.size());
    std::sort(inputs.begin(), inputs.end());
    inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
    ModelStep step;
    step.inputs = std::move(inputs);
    step.ms = ms;
    for (const Output& output : outputs) {
      step.outputs.push_back(static_cast<int>(model_.values.size()));
      model_.values.push_back({.bytes = output.bytes,
                               .producer = number,
                               .in_arena = output.in_arena,
                               .positions = {}});
    }
    model_.steps.push_back(std::move(step));
    return number;
  }
  ModelStep& at(int step) { return model_.steps[static_cast<std::size_t>(step)]; }
  ModelValue& value(int index) { return model_.values[static_cast<std::size_t>(index)]; }
  int output(int step, int slot = 0) { return at(step).outputs[static_cast<std::size_t>(slot)]; }

  // Lets the first output lie over any input of its size.
  void overwrite(int step) {
    for (int input : at(step).inputs)
      if (value(input).bytes == value(output(step)).bytes && value(input).in_arena)
        at(step).overwrites.push_back({0, input});
  }

  StepModel finish() {
    model_.graph_steps = static_cast<int>(model_.steps.size());
    return finish(model_.graph_steps);
  }
  StepModel finish(int graph_steps) {
    model_.graph_steps = graph_steps;
    for (ModelStep& step : model_.steps)
      if (step.valid_until == 0) step.valid_until = static_cast<int>(model_.steps.size());
    model_.finish();
    return std::move(model_);
  }

 private:
  std::mt19937_64 random_;
  StepModel model_;
};

}  // namespace

StepModel random_layers(std::uint64_t seed, int layers) {
  Builder b(seed);
  struct Layer {
    int step = 0;
    int in = 0, out = 0;             // values
    std::optional<int> skip, saved;  // a value read besides; a second output for backward
    bool weights = false, in_place = false;
  };
  const std::size_t count = static_cast<std::size_t>(layers);
  std::vector<Layer> net(count);
  std::vector<int> values = {b.input(b.size())};
  for (Layer& layer : net) {
    layer.in = values.back();
    layer.weights = b.chance(65);
    layer.in_place = !layer.weights && b.chance(60);
    if (values.size() > 2 && b.chance(25)) layer.skip = values[values.size() - 3];
    std::vector<int> inputs = {layer.in};
    if (layer.skip) inputs.push_back(*layer.skip);
    const bool same_size = !layer.weights || b.chance(50);
    std::vector<Builder::Output> outputs = {{same_size ? b.value(layer.in).bytes : b.size()}};
    if (b.chance(25)) outputs.push_back({1 + b.below(3)});
    const double ms = b.ms() / (layer.weights ? 1.0 : 5.0);
    layer.step = b.step(inputs, outputs, std::ceil(ms));
    layer.out = b.output(layer.step);
    if (outputs.size() > 1) layer.saved = b.output(layer.step, 1);
    if (b.chance(30)) b.at(layer.step).workspace = b.below(10);
    if (!layer.weights) b.overwrite(layer.step);
    if (b.chance(7)) b.at(layer.step).recomputable = false;
    values.push_back(layer.out);
  }
  const int loss = b.step({net.back().out}, {{1, false}, {b.value(net.back().out).bytes}}, b.ms());
  b.at(loss).overwrites.push_back({1, net.back().out});
  int gradient = b.output(loss, 1);
  std::vector<int> copied;
  for (std::size_t i = count; i-- > 0;) {
    const Layer& layer = net[i];
    const double ms = b.at(layer.step).ms;
    std::vector<int> inputs = {gradient, layer.in_place ? layer.out : layer.in};
    if (layer.saved) inputs.push_back(*layer.saved);
    std::optional<int> backward;
    if (i > 0) {
      std::vector<int> reads = inputs;
      if (layer.weights && !layer.saved) reads.pop_back();  // a product's own input is not read
      backward = b.step(reads, {{b.value(layer.in).bytes}}, ms);
      b.overwrite(*backward);
      if (b.chance(20)) b.at(*backward).workspace = b.below(8);
    }
    if (layer.weights && b.chance(15)) {
      const int made = b.step(inputs, {{b.size()}}, ms);
      copied.push_back(b.output(made));
      b.value(copied.back()).copied_out = true;
    } else if (layer.weights) {
      const int update = b.step(inputs, {{b.size(), false}}, ms);
      b.at(update).valid_until = b.at(layer.step).valid_until = update;
      if (backward) b.at(*backward).valid_until = update;
    } else if (i == 0) {
      b.step(inputs, {{b.value(layer.in).bytes, false}}, ms);
    }
    if (backward) gradient = b.output(*backward);
  }
  const int graph_steps = loss + 1 + 2 * layers;
  for (int value : copied) b.step({value}, {{b.value(value).bytes, false}}, b.ms() / 5.0);
  return b.finish(graph_steps);
}

StepModel random_steps(std::uint64_t seed, int steps) {
  Builder b(seed);
  std::vector<int> values;
  for (int i = 1 + b.below(2); i > 0; --i) values.push_back(b.input(b.size()));
  std::vector<char> read(64);
  for (int s = 0; s < steps; ++s) {
    std::vector<int> inputs;
    const int count = static_cast<int>(values.size());
    for (int i = 1 + b.below(3); i > 0; --i) {
      // Mostly what was made last, sometimes anything, first of all what nobody has read yet.
      const int back = b.chance(60) ? b.below(std::min(3, count)) : b.below(count);
      inputs.push_back(values[static_cast<std::size_t>(count - 1 - back)]);
    }
    if (s + 1 == steps || b.chance(40))
      for (int v : values)
        if (!read[static_cast<std::size_t>(v)] && (s + 1 == steps || b.chance(50)))
          inputs.push_back(v);
    for (int v : inputs) read[static_cast<std::size_t>(v)] = 1;
    const bool outside = s + 1 == steps || b.chance(15);
    const bool same_size = b.chance(40);
    std::vector<Builder::Output> outputs = {
        {same_size ? b.value(inputs[0]).bytes : b.size(), !outside}};
    if (b.chance(15) && s + 1 < steps) outputs.push_back({b.size()});
    const int number = b.step(inputs, outputs, b.ms());
    if (b.chance(40)) b.overwrite(number);
    if (b.chance(30)) b.at(number).workspace = b.below(12);
    if (b.chance(8)) b.at(number).recomputable = false;
    for (std::size_t o = 0; o < outputs.size(); ++o)
      if (outputs[o].in_arena) values.push_back(b.output(number, static_cast<int>(o)));
    if (outside && b.chance(50)) {  // writes a variable that some steps before it have read
      b.at(number).valid_until = number;
      for (int t = 0; t < number; ++t)
        if (b.at(t).valid_until == 0 && b.chance(20)) b.at(t).valid_until = number;
    }
  }
  return b.finish();
}

}  // namespace ebb::test
