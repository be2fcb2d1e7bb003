#include "ebb/probe.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

#include "core/cuda/cuda.h"
#include "ebb/error.h"
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

// How often another process has taken a core from this one.
long interruptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

// Times ops, and notes whether the machine was quiet meanwhile.
class Stopwatch {
 public:
  // Seconds that the op which makes `result` takes.
  double seconds(const Tensor& result) {
    // Reduced to one number, so that the result itself lies in the arena as it does in a step; by
    // an op of its own, which does not compute the result itself.
    CompileOptions options;
    options.passes = required_passes();
    Program program({.inputs = {}, .outputs = {sum(result)}, .updates = {}}, options);
    const auto& instructions = program.plan().instructions;
    const auto found = std::find_if(
        instructions.begin(), instructions.end(),
        [&](const Instruction& instruction) { return instruction.op == &maker(result).op(); });
    if (found == instructions.end())
      throw Error(fmt::format("[probe] no instruction runs {}", maker(result).op().name()));
    const std::size_t which = static_cast<std::size_t>(found - instructions.begin());
    return fastest(std::move(program),
                   [=](const std::vector<double>& times) { return times[which]; });
  }

  // Seconds an instruction takes that does next to nothing, among others of its kind.
  double launch(const Tensor& number) {
    constexpr int count = 128;
    Tensor last = number;
    for (int i = 0; i < count; ++i) last = -last;
    CompileOptions options;
    options.passes = required_passes();
    return fastest(Program({.inputs = {}, .outputs = {last}, .updates = {}}, options),
                   [](const std::vector<double>& times) {
                     return std::accumulate(times.begin(), times.end(), 0.0) / count;
                   });
  }

  // Operations a second of whatever makes `result`, when all else is known.
  double rate_of(const Tensor& result, const Rates& known) {
    const Node& node = maker(result);
    std::vector<TensorType> inputs;
    for (const Tensor& input : node.inputs()) inputs.push_back(input.type());
    const Cost cost = node.op().cost(inputs, node.outputs(), node.attributes());
    const double whole = seconds(result);
    const double moving = known.overlaps ? 0.0 : known.seconds_to_move(cost.moved);
    return cost.flops / std::max(whole - moving, 0.5 * whole);
  }

  // Bytes a second when so many elements are read and written.
  double bandwidth(const Tensor& numbers) {
    return 2.0 * static_cast<double>(numbers.type().bytes().count) / seconds(-numbers);
  }

  bool quiet() const { return quiet_; }

 private:
  // Of the fastest run, when ten have not been disturbed. A machine that is never quiet is given a
  // third of a second.
  template <class Of>
  double fastest(Program program, const Of& of) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(333);
    double best = 1e300;
    for (int undisturbed = 0; undisturbed < 10;) {
      const long before = interruptions();
      best = std::min(best, of(program.timed_run()));
      undisturbed += interruptions() == before;
      if (std::chrono::steady_clock::now() < give_up) continue;
      quiet_ &= undisturbed >= 10;
      break;
    }
    return 1e-3 * std::max(best, 1e-6);  // a clock's tick is no time at all
  }

  bool quiet_ = true;
};

// What is large enough to fill a device, and small enough to take no time.
struct Sizes {
  std::int64_t copied;       // elements: far more than any cache holds
  std::int64_t elementwise;  // elements; on a CPU they stay in the second-level cache
  std::int64_t product;      // rows and columns
  Shape attention, images, filters;
  ImageLayout layout;  // of images, as models have them on such a device
};
const Sizes cpu_sizes{.copied = 1 << 24,
                      .elementwise = 1 << 16,
                      .product = 512,
                      .attention = {1, 8, 256, 64},
                      .images = {8, 32, 32, 32},
                      .filters = {32, 32, 3, 3},
                      .layout = ImageLayout::channels_first};
const Sizes cuda_sizes{.copied = 1 << 28,
                       .elementwise = 1 << 24,
                       .product = 4096,
                       .attention = {16, 12, 1024, 64},
                       .images = {256, 16, 16, 128},
                       .filters = {128, 128, 3, 3},
                       .layout = ImageLayout::channels_last};

// Values with buffers of their own, not computed while others are timed.
struct Numbers {
  Device device;
  Tensor operator()(const Shape& shape, DType dtype) const {
    return eval(random_uniform(shape, -1.0, 1.0, dtype, device, RandomKey{1}));
  }
};

template <class Measure>
WorkRate for_each_type(const Measure& measure) {
  return {measure(f32), measure(bf16), measure(f16), measure(f64)};
}

// The largest amount that is moved much faster than what comes from memory. Systems tell the sizes
// of their caches, but not how much of them others use.
void find_cache(Rates& rates, const Numbers& number, Stopwatch& watch) {
  const auto bandwidth_at = [&](Bytes moved) {
    return watch.bandwidth(number({moved.count / 2 / 4}, f32));
  };
  const double near = bandwidth_at(1_MiB), much = std::sqrt(near * rates.bandwidth);
  rates.cache = {}, rates.cache_bandwidth = near;
  for (Bytes moved = 1_MiB; moved <= 64_MiB; moved += moved) {
    const double here = bandwidth_at(moved);
    if (here < much) break;
    rates.cache = moved, rates.cache_bandwidth = here;
  }
}

Rates measure_with(Device device, Stopwatch& watch) {
  const bool cuda = device.kind == Device::Kind::cuda;
  const Sizes& sizes = cuda ? cuda_sizes : cpu_sizes;
  const Numbers number{device};
  Rates rates;
  rates.kind = device.kind;
  rates.bandwidth = watch.bandwidth(number({sizes.copied}, f32));
  rates.launch_us = 1e6 * watch.launch(number({1}, f32));
  rates.overlaps = cuda;
  rates.cache = {};
  if (!cuda) find_cache(rates, number, watch);

  rates[Work::elementwise] = for_each_type(
      [&](DType dtype) { return watch.rate_of(gelu(number({sizes.elementwise}, dtype)), rates); });
  rates[Work::product] = for_each_type([&](DType dtype) {
    const Tensor x = number({sizes.product, sizes.product}, dtype);
    return watch.rate_of(matmul(x, x), rates);
  });
  rates[Work::attention] = for_each_type([&](DType dtype) {
    const Tensor q = number(sizes.attention, dtype);
    return watch.rate_of(scaled_dot_product_attention(q, q, q, {.causal = true}), rates);
  });
  rates[Work::convolution] = for_each_type([&](DType dtype) {
    return watch.rate_of(conv2d(number(sizes.images, dtype), number(sizes.filters, dtype), {},
                                {.stride = 1, .padding = 1, .layout = sizes.layout}),
                         rates);
  });
  return rates;
}

// On a machine that others use, threads wait for each other most of the time. One thread is
// measured then, and all are taken to do as much at once; memory is shared.
Rates measure_one_thread(Device device) {
  const int all = threads();
  set_threads(1);
  Stopwatch watch;
  Rates rates = measure_with(device, watch);
  set_threads(all);
  rates.cache_bandwidth *= all;
  for (WorkRate& rate : rates.work)
    rate.f32 *= all, rate.bf16 *= all, rate.f16 *= all, rate.f64 *= all;
  return rates;
}

}  // namespace

Rates measure_rates(Device device) {
  const bool cuda = device.kind == Device::Kind::cuda;
  if (cuda) cuda::require(device);
  Stopwatch watch;
  Rates rates = measure_with(device, watch);
  if (!cuda && !watch.quiet() && threads() > 1) rates = measure_one_thread(device);
  if (cuda) {
    rates.name = cuda::properties(device).name;
    rates.memory = cuda::memory_info(device).total;
  } else {
    rates.name = fmt::format("{}, {} threads", processor_name(), threads());
    rates.memory = {static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)};
  }
  return rates;
}

}  // namespace ebb
