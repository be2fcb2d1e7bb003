#include "ebb/probe.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

#include "core/backend.h"
#include "core/tier_block.h"
#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/threads.h"

namespace ebb {
namespace {

// The node that computes `result`, which may be a view of that node's output.
const Node& maker(const Tensor& result) {
  const Node* node = result.node().get();
  while (node->op().is_view()) node = node->inputs()[0].node().get();
  return *node;
}

// The number of involuntary context switches of this process so far.
long interruptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

// Times ops and records whether the machine was quiet: no other processes took its cores.
class Stopwatch {
 public:
  // Seconds that the op that computes `result` takes.
  double seconds(const Tensor& result) {
    auto [program, which] = running({result}, {});
    return time_of(std::move(program), which);
  }

  // The time of the op that computes the first of `results`, divided by the time that `rates`
  // predict for it. All results are computed.
  double factor_of(const std::vector<Tensor>& results, const Rates& rates) {
    auto [program, which] = running(results, rates);
    const double predicted = program.plan().instructions[InstructionId(which)].predicted_ms;
    return 1e3 * time_of(std::move(program), which) / predicted;
  }

  // Seconds that an instruction on one number takes, as the mean over a sequence of them.
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

  // Operations per second of the op that computes `result`, given the rates of memory traffic.
  double rate_of(const Tensor& result, const Rates& known) {
    const Node& node = maker(result);
    std::vector<TensorType> inputs;
    for (const Tensor& input : node.inputs()) inputs.push_back(input.type());
    const Cost cost = node.op().cost(inputs, node.outputs(), node.attributes());
    const double whole = seconds(result);
    const double moving = known.overlaps ? 0.0 : known.seconds_to_move(cost.moved);
    return cost.flops / std::max(whole - moving, 0.5 * whole);
  }

  // Bytes per second, read plus written, of an elementwise op on `numbers`.
  double bandwidth(const Tensor& numbers) {
    return 2.0 * static_cast<double>(numbers.type().bytes().count) / seconds(-numbers);
  }

  bool quiet() const { return quiet_; }

 private:
  struct Running {
    Program program;
    std::size_t which;  // the instruction that is timed
  };

  // A program of the op that computes the first of `results`.
  static Running running(const std::vector<Tensor>& results, const Rates& rates) {
    // Its outputs are sums of the results, so that the results themselves are in the arena as they
    // are in a training step. Without optional passes, the sums stay separate ops.
    CompileOptions options;
    options.passes = required_passes();
    options.plan.rates = rates;
    std::vector<Tensor> sums;
    for (const Tensor& result : results) sums.push_back(sum(result));
    Program program({.inputs = {}, .outputs = sums, .updates = {}}, options);
    const Op& op = maker(results.front()).op();
    const auto& instructions = program.plan().instructions;
    const auto found =
        std::find_if(instructions.begin(), instructions.end(),
                     [&](const Instruction& instruction) { return instruction.op == &op; });
    if (found == instructions.end())
      throw Error(fmt::format("[probe] no instruction runs {}", op.name()));
    return {std::move(program), static_cast<std::size_t>(found - instructions.begin())};
  }

  double time_of(Program program, std::size_t which) {
    return fastest(std::move(program),
                   [=](const std::vector<double>& times) { return times[which]; });
  }

  // The time of the fastest run, in seconds. Stops after ten runs without an involuntary context
  // switch, or after a third of a second; in the latter case the machine does not count as quiet.
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
    return 1e-3 * std::max(best, 1e-6);  // at least 1 ns: below the clock's resolution it may be 0
  }

  bool quiet_ = true;
};

// Sizes of the measured ops: large enough to fill a device, small enough to be measured quickly.
struct Sizes {
  std::int64_t copied;       // elements: far more than fit any cache
  std::int64_t elementwise;  // elements; on a CPU they fit the second-level cache
  std::int64_t product;      // rows and columns
  Shape attention, images, filters;
  ImageLayout layout;  // of images, as models use it on such a device
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

// Makes constants, which have memory of their own and are not computed while ops are timed.
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

// Finds the largest amount that is moved much faster than from main memory, that is at more than
// the geometric mean of both bandwidths. It is measured because the operating system reports the
// sizes of caches, but not how much of them other processes use.
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

// Norms and their gradients read rows twice or sum over them, sums fold many numbers into few, and
// the gradient of attention has less parallel work than its products: none runs at the full rate.
void find_factors(Rates& rates, const Numbers& number, Stopwatch& watch) {
  const auto add = [&](const std::vector<Tensor>& results) {
    rates.factors[std::string(maker(results.front()).op().name())] =
        watch.factor_of(results, rates);
  };
  const auto add_with_gradient = [&](const Tensor& y, const std::vector<Tensor>& wrt) {
    add({y});
    add(grad(sum(cast(y, f32) * number(y.shape(), f32)), wrt));
  };
  const Tensor rows = number({8192, 1024}, bf16), weight = number({1024}, bf16),
               bias = number({1024}, bf16);
  add({sum(rows, {0})});
  add_with_gradient(layer_norm(rows, weight, bias), {rows, weight, bias});
  add_with_gradient(rms_norm(rows, weight), {rows, weight});
  const Tensor images = number({256, 16, 16, 256}, bf16), scale = number({256}, bf16),
               shift = number({256}, bf16);
  add_with_gradient(
      batch_norm(images, scale, shift, {}, {}, Training::yes, 0.1, 1e-5, ImageLayout::channels_last)
          .y,
      {images, scale, shift});
  const Tensor q = number({8, 16, 1024, 64}, bf16), k = number({8, 16, 1024, 64}, bf16),
               v = number({8, 16, 1024, 64}, bf16);
  const Tensor attended = scaled_dot_product_attention(q, k, v, {.causal = true});
  add(grad(sum(cast(attended, f32) * number(attended.shape(), f32)), {q, k, v}));
}

Rates measure_with(Device device, Stopwatch& watch) {
  const bool many_threads = backend_of(device).overlaps();
  const Sizes& sizes = many_threads ? cuda_sizes : cpu_sizes;
  const Numbers number{device};
  Rates rates;
  rates.kind = device.kind;
  rates.bandwidth = watch.bandwidth(number({sizes.copied}, f32));
  rates.launch_us = 1e6 * watch.launch(number({1}, f32));
  rates.overlaps = backend_of(device).overlaps();
  rates.cache = {};
  if (!rates.overlaps) find_cache(rates, number, watch);

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
  if (rates.overlaps) find_factors(rates, number, watch);
  return rates;
}

// The rates of copies between a GPU and pinned memory of the host, one direction at a time.
Link measure_host_link(Device device) {
  constexpr Bytes size = 256_MiB;
  const Backend& backend = backend_of(device);
  const auto here = Storage::allocate(device, size);
  const auto there = TierBlock::allocate(Tier::host, device, size, {});
  const auto rate = [&](const auto& copy) {
    double best = 1e300;
    for (int run = 0; run < 4; ++run) {
      const auto begin = std::chrono::steady_clock::now();
      copy();
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return static_cast<double>(size.count) / best;
  };
  return {rate([&] {
            std::byte last{};  // reading it waits for the copy
            backend.write(device, here->data(), there->data(), size);
            backend.read(device, &last, here->data(), 1_B);
          }),
          rate([&] { backend.read(device, there->data(), here->data(), size); })};
}

// On a machine with other load, threads wait for one another most of the time. So one thread is
// measured, and rates of arithmetic and caches are multiplied by the number of threads; the
// bandwidth of main memory, which threads share, is not.
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
  const Backend& backend = backend_of(device);
  backend.require(device);
  Stopwatch watch;
  Rates rates = measure_with(device, watch);
  const bool shares_processor = !backend.runs_beside_host();
  if (shares_processor && !watch.quiet() && threads() > 1) rates = measure_one_thread(device);
  if (backend.runs_beside_host()) rates.links[Tier::host] = measure_host_link(device);
  rates.name = backend.name(device);
  rates.memory = backend.memory(device);
  return rates;
}

}  // namespace ebb
