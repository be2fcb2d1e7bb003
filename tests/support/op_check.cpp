#include "support/op_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ebb/storage.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

using Tensors = std::vector<Tensor>;

std::vector<const Op*>& seen_ops() {
  static std::vector<const Op*> ops;
  return ops;
}

void note_ops(const Tensors& outputs) {
  for (const auto& node : topological_order({.inputs = {}, .outputs = outputs, .updates = {}}))
    if (std::find(seen_ops().begin(), seen_ops().end(), &node->op()) == seen_ops().end())
      seen_ops().push_back(&node->op());
}

Tensors make_inputs(const Sample& sample, DType dtype) {
  Tensors inputs;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i)
    inputs.push_back(make_input(sample.inputs[i], dtype, 17 + i));
  return inputs;
}

std::vector<std::size_t> differentiable(const Sample& sample) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i)
    if (sample.inputs[i].differentiable && is_floating(sample.inputs[i].dtype))
      indices.push_back(i);
  return indices;
}

// Σ outputs · fixed random weights: a scalar whose gradient exercises every output element.
Tensor weighted_sum(const Tensors& outputs) {
  Tensor total;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    const Tensor weights =
        make_input(SampleInput::real(outputs[i].shape()), outputs[i].dtype(), 91 + i);
    const Tensor part = cast(sum(outputs[i] * weights), f64);  // outputs may differ in dtype
    total = total ? total + part : part;
  }
  return total;
}

// A scalar function and its gradient compared along a random direction and along single
// coordinates.
using ScalarFunction = std::function<Tensor(const Tensors&)>;

double evaluate(const ScalarFunction& f, const Tensors& inputs) { return f(inputs).item(); }

Tensors shifted(const Tensors& inputs, std::size_t which, const std::vector<double>& direction,
                double step) {
  Tensors moved = inputs;
  std::vector<double> values = values_of(inputs[which]);
  for (std::size_t k = 0; k < values.size(); ++k) values[k] += step * direction[k];
  moved[which] = Tensor::from(values, inputs[which].shape());
  return moved;
}

void compare_gradient(const std::string& name, const ScalarFunction& f, const Tensors& inputs,
                      const std::vector<std::size_t>& wrt, double tolerance) {
  Tensors targets;
  for (std::size_t i : wrt) targets.push_back(inputs[i]);
  const Tensors lazy = grad(f(inputs), targets);
  note_ops(lazy);
  const Tensors gradients = eval(lazy);
  for (std::size_t n = 0; n < wrt.size(); ++n) {
    const std::vector<double> g = values_of(gradients[n]);
    const std::size_t count = g.size();
    // A random direction and two single coordinates: the direction catches any error with certainty
    // in practice, the coordinates tell where it is.
    std::vector<std::vector<double>> directions{
        values_of(make_input(SampleInput::real(inputs[wrt[n]].shape()), f64, 7 + n))};
    for (std::size_t k : {std::size_t{0}, count / 2})
      if (count > 0) directions.emplace_back(count, 0.0).at(k) = 1.0;
    for (const std::vector<double>& d : directions) {
      double expected = 0.0, scale = 0.0;
      for (std::size_t k = 0; k < count; ++k)
        expected += g[k] * d[k], scale += std::abs(g[k] * d[k]);
      const double h = 1e-4;  // fourth-order differences: truncation h⁴, rounding ε/h
      const double d1 =
          evaluate(f, shifted(inputs, wrt[n], d, h)) - evaluate(f, shifted(inputs, wrt[n], d, -h));
      const double d2 = evaluate(f, shifted(inputs, wrt[n], d, 2 * h)) -
                        evaluate(f, shifted(inputs, wrt[n], d, -2 * h));
      const double numeric = (8.0 * d1 - d2) / (12.0 * h);
      EXPECT_NEAR(expected, numeric, tolerance * std::max(1.0, scale))
          << name << ": gradient in input " << wrt[n];
    }
  }
}

void check_gradients(const Sample& sample) {
  const std::vector<std::size_t> wrt = differentiable(sample);
  if (wrt.empty()) return;
  const Tensors inputs = make_inputs(sample, f64);
  const ScalarFunction loss = [&](const Tensors& x) { return weighted_sum(sample.function(x)); };
  if (!loss(inputs)) return;  // no floating output
  compare_gradient(sample.name + " (first order)", loss, inputs, wrt, sample.tolerance);
  if (!sample.second_order) return;

  // The gradient, contracted with fixed vectors, is again a scalar function.
  const ScalarFunction contracted = [&](const Tensors& x) {
    Tensors targets;
    for (std::size_t i : wrt) targets.push_back(x[i]);
    const Tensors gradients = grad(loss(x), targets);
    Tensor total;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Tensor part =
          sum(gradients[i] * make_input(SampleInput::real(gradients[i].shape()), f64, 137 + i));
      total = total ? total + part : part;
    }
    return total;
  };
  compare_gradient(sample.name + " (second order)", contracted, inputs, wrt, sample.tolerance);
}

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double scale = 1e-30, worst = 0.0;
  for (double v : b) scale = std::max(scale, std::isfinite(v) ? std::abs(v) : 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double difference = std::abs(a[i] - b[i]) / scale;
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

// Outputs, then gradients of their weighted sum: everything a training step would compute.
Tensors outputs_and_gradients(const Sample& sample, const Tensors& inputs) {
  Tensors results = sample.function(inputs), targets;
  for (std::size_t i : differentiable(sample)) targets.push_back(inputs[i]);
  const Tensor loss = targets.empty() ? Tensor{} : weighted_sum(results);
  if (loss)
    for (Tensor& g : grad(loss, targets)) results.push_back(g);
  return results;
}

// The relative error that results in a dtype may have against float64: sums of tens of terms lose a
// few bits, and half types round between the ops of a composite. Another device's float64 adds in
// another order and has its own exponentials, right to the last bit or two.
double allowed_error(const Sample& sample, DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-11;
    case DType::float32:
      return sample.float_tolerance_factor * 0x1p-23;
    case DType::float16:
      return sample.half_tolerance_factor * 0x1p-10;
    default:
      return sample.half_tolerance_factor * 0x1p-7;
  }
}

// The same inputs, rounded to the dtype, through its kernels and through float64's on the CPU.
void check_precision(const Sample& sample, DType dtype, Device device) {
  Tensors low = make_inputs(sample, dtype), high;
  for (std::size_t i = 0; i < low.size(); ++i)
    high.push_back(sample.inputs[i].dtype == f64 ? eval(cast(low[i], f64)) : low[i]);
  Tensors results = outputs_and_gradients(sample, low);
  if (device != device::cpu) results = OtherDevice(device, OtherDevice::Constants::copied)(results);
  const Tensors actual = eval(results), expected = eval(outputs_and_gradients(sample, high));
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE(worst_difference(values_of(actual[i]), values_of(expected[i])),
              allowed_error(sample, dtype))
        << sample.name << ": result " << i << " in " << name(dtype) << " on " << to_string(device)
        << " against float64";
}

void check_precisions(const Sample& sample) {
  for (DType dtype : {f32, f16, bf16}) check_precision(sample, dtype, device::cpu);
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(t.type().bytes().count));
  const Tensor value = eval(t);
  value.node()->storage()->read(bytes);
  return bytes;
}

// Products that the passes joined with what follows them, which only happens on CUDA: such a
// product is rounded once less, and in float32 added up in another order.
bool joins_products(const Plan& fused, const Plan& unfused) {
  const auto count = [](const Plan& plan) {
    return std::count_if(plan.instructions.begin(), plan.instructions.end(),
                         [](const Instruction& i) { return i.op->name() == "matmul_then"; });
  };
  return count(fused) > count(unfused);
}

void check_repetition(const Sample& sample, Device device) {
  for (DType dtype : {f64, f32, bf16}) {
    if (dtype != f64 && !sample.low_precision) continue;
    const Tensors inputs = make_inputs(sample, dtype);
    Tensors results = outputs_and_gradients(sample, inputs);
    if (device != device::cpu)
      results = OtherDevice(device, OtherDevice::Constants::copied)(results);
    const Graph graph{.inputs = {}, .outputs = results, .updates = {}};
    Program plain(graph, {.plan = {}, .seed = 0});
    Program unfused(graph, {.plan = {}, .passes = required_passes(), .seed = 0});
    Program kept(graph, {.plan = {.release = Release::at_end}, .seed = 0});
    Tensors first;
    plain.run(), unfused.run(), kept.run();
    const bool rounds_less = joins_products(plain.plan(), unfused.plan());
    for (int i = 0; i < static_cast<int>(results.size()); ++i) first.push_back(plain.output(i));
    for (int again = 0; again < 2; ++again) {  // on CUDA recorded the first time, then replayed
      plain.set_step(0);
      plain.run();
    }
    for (int i = 0; i < static_cast<int>(results.size()); ++i) {
      const auto expected = bytes_of(first[static_cast<std::size_t>(i)]);
      EXPECT_EQ(bytes_of(plain.output(i)), expected)
          << sample.name << ": result " << i << " differs between two runs";
      if (rounds_less)  // each of the two may be off by what is allowed
        EXPECT_LE(worst_difference(values_of(plain.output(i)), values_of(unfused.output(i))),
                  2.0 * allowed_error(sample, dtype))
            << sample.name << ": joining products changed result " << i << " in " << name(dtype);
      else
        EXPECT_EQ(bytes_of(unfused.output(i)), expected)
            << sample.name << ": fusion changed result " << i << " in " << name(dtype);
      EXPECT_EQ(bytes_of(kept.output(i)), expected)
          << sample.name << ": buffer reuse changed result " << i << " in " << name(dtype);
    }
  }
}

// Ops that have kernels for the CPU alone: planning for CUDA must say so.
constexpr std::string_view cpu_only[] = {"cache_write_int8", "cached_attention_int8",
                                         "choose_pairs",     "take_pairs",
                                         "spread_pairs",     "pair_linear"};

// The first of them in a graph, or nothing.
std::string cpu_only_op(const Graph& graph) {
  for (const auto& node : topological_order(graph))
    if (std::ranges::find(cpu_only, node->op().name()) != std::end(cpu_only))
      return std::string(node->op().name());
  return {};
}

}  // namespace

void check_cuda(const Sample& sample) {
  if (!built_with_cuda()) return;
  const Device device = device::cuda(0);
  const auto graph_in = [&](DType dtype) {
    return Graph{.inputs = {},
                 .outputs = outputs_and_gradients(sample, make_inputs(sample, dtype)),
                 .updates = {}};
  };
  bool has_kernels = true;
  for (DType dtype : {f64, f32, f16, bf16}) {
    if (dtype != f64 && !sample.low_precision) continue;
    const Graph graph = graph_in(dtype);
    const auto plan = [&] {
      (void)plan_program(OtherDevice(device, OtherDevice::Constants::inputs)(graph));
    };
    if (const std::string op = cpu_only_op(graph); !op.empty()) {
      has_kernels = false;
      expect_error(plan, {op, "no kernel", to_string(device)});
    } else if (cuda_present()) {
      check_precision(sample, dtype, device);
    } else {
      EXPECT_NO_THROW(plan()) << sample.name << " in " << name(dtype) << " on "
                              << to_string(device);
    }
  }
  if (cuda_present() && has_kernels) check_repetition(sample, device);
}

namespace {

// Every op in the graph that has a reference, against it, at the sample's own inputs.
void check_references(const Sample& sample) {
  const Tensors inputs = make_inputs(sample, f64);
  const Tensors results = outputs_and_gradients(sample, inputs);
  for (const auto& node : topological_order({.inputs = {}, .outputs = results, .updates = {}})) {
    if (!node->op().has_reference()) continue;
    const Tensors expected = node->op().reference(node->inputs(), node->attributes());
    ASSERT_EQ(expected.size(), node->outputs().size()) << node->op().name();
    for (std::size_t o = 0; o < expected.size(); ++o) {
      ASSERT_EQ(expected[o].type(), node->outputs()[o]) << node->op().name();
      const auto actual = values_of(Tensor(node, static_cast<int>(o)));
      EXPECT_LE(worst_difference(actual, values_of(expected[o])),
                1e-12)  // float64, sums of tens of terms
          << sample.name << ": output " << o << " of " << node->op().name()
          << " against its reference";
    }
  }
}

}  // namespace

std::vector<double> values_of(const Tensor& tensor) {
  return cast(tensor, f64).to_vector<double>();
}

Tensor make_input(const SampleInput& input, DType dtype_under_test, std::uint64_t seed) {
  const DType dtype = input.dtype == f64 ? dtype_under_test : input.dtype;
  std::vector<double> values = input.values;
  if (values.empty()) {
    const Philox philox({seed, 0}, {0});
    for (std::int64_t i = 0; i < input.shape.elements(); ++i) {
      const double u = philox(static_cast<std::uint64_t>(i))[0] * 0x1p-32;
      const double x = input.low + (input.high - input.low) * u;
      values.push_back(is_floating(dtype) ? x : std::floor(x));
    }
  }
  return eval(cast(Tensor::from(values, input.shape), dtype));
}

void check(const Sample& sample) {
  SCOPED_TRACE(sample.name);
  note_ops(outputs_and_gradients(sample, make_inputs(sample, f64)));
  if (checks() == Checks::all) {
    check_gradients(sample);
    check_references(sample);
    if (sample.low_precision) check_precisions(sample);
    check_repetition(sample, device::cpu);
  }
  check_cuda(sample);
}

Checks& checks() {
  static Checks chosen = Checks::all;
  return chosen;
}

const std::vector<const Op*>& checked_ops() { return seen_ops(); }

void expect_error(const std::function<void()>& use, const std::vector<std::string>& parts) {
  try {
    use();
    ADD_FAILURE() << "no error; expected one that names " << (parts.empty() ? "" : parts.front());
  } catch (const Error& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is missing from: " << error.what();
  }
}

}  // namespace ebb::test
