#include "ebb/probe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/cuda/cuda.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/threads.h"

namespace ebb {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "CPU";
}

// The node that computes `result`, which may be a view of what it made.
const Node& maker(const Tensor& result) {
  const Node* node = result.node().get();
  while (node->op().is_view()) node = node->inputs()[0].node().get();
  return *node;
}

// Seconds that the op which makes `result` takes: the fastest of several runs.
double seconds(const Tensor& result) {
  // Reduced to one number, so that the result itself lies in the arena as it does in a step.
  Program program({.inputs = {}, .outputs = {sum(result)}, .updates = {}});
  const auto& instructions = program.plan().instructions;
  const auto found =
      std::find_if(instructions.begin(), instructions.end(), [&](const Instruction& instruction) {
        return &instruction.node->op() == &maker(result).op();
      });
  const std::size_t which = static_cast<std::size_t>(found - instructions.begin());
  double best = 1e300;
  for (int run = 0; run < 5; ++run) best = std::min(best, program.timed_run().at(which));
  return 1e-3 * std::max(best, 1e-6);  // a clock's tick is no time at all
}

// Operations a second of whatever makes `result`.
double rate_of(const Tensor& result) {
  const Node& node = maker(result);
  std::vector<TensorType> inputs;
  for (const Tensor& input : node.inputs()) inputs.push_back(input.type());
  const Cost cost = node.op().cost(inputs, node.outputs(), node.attributes());
  return cost.flops / seconds(result);
}

// What is large enough to fill a device, and small enough to take no time.
struct Sizes {
  std::int64_t copied;       // elements: far more than any cache holds
  std::int64_t elementwise;  // elements; on a CPU they stay in the second-level cache
  std::int64_t product;      // rows and columns
  Shape attention, images, filters;
};
const Sizes cpu_sizes{1 << 24, 1 << 16, 512, {1, 8, 256, 64}, {8, 32, 32, 32}, {32, 32, 3, 3}};
const Sizes cuda_sizes{1 << 28,           1 << 24,       4096, {16, 12, 1024, 64},
                       {128, 64, 32, 32}, {64, 64, 3, 3}};

// Values with buffers of their own, not computed while others are timed.
struct Numbers {
  Device device;
  Tensor operator()(const Shape& shape, DType dtype) const {
    return eval(random_uniform(shape, -1.0, 1.0, dtype, device, RandomKey{1}));
  }
};

template <class Measure>
WorkRate for_each_width(const Measure& measure) {
  return {measure(f32), measure(bf16), measure(f64)};
}

}  // namespace

Rates measure_rates(Device device) {
  const bool cuda = device.kind == Device::Kind::cuda;
  const Sizes& sizes = cuda ? cuda_sizes : cpu_sizes;
  const Numbers number{device};
  Rates rates;
  if (cuda) {
    rates.name = cuda::properties(device).name;
    rates.memory = cuda::memory_info(device).total;
  } else {
    rates.name = fmt::format("{}, {} threads", processor_name(), threads());
    rates.memory = {static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)};
  }

  const Tensor large = number({sizes.copied}, f32);
  rates.bandwidth = 2.0 * static_cast<double>(large.type().bytes().count) / seconds(-large);
  rates.launch_us = 1e6 * seconds(-number({1}, f32));

  rates[Work::elementwise] = for_each_width([&](DType dtype) {
    const Tensor x = number({sizes.elementwise}, dtype);
    return static_cast<double>(x.shape().elements()) / seconds(gelu(x));
  });
  rates[Work::product] = for_each_width([&](DType dtype) {
    const Tensor x = number({sizes.product, sizes.product}, dtype);
    return rate_of(matmul(x, x));
  });
  rates[Work::attention] = for_each_width([&](DType dtype) {
    const Tensor q = number(sizes.attention, dtype);
    return rate_of(scaled_dot_product_attention(q, q, q, {.causal = true}));
  });
  rates[Work::convolution] = for_each_width([&](DType dtype) {
    return rate_of(conv2d(number(sizes.images, dtype), number(sizes.filters, dtype), {},
                          {.stride = 1, .padding = 1}));
  });
  return rates;
}

}  // namespace ebb
