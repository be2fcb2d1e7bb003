// Times attention's kernels on a GPU, forward and backward separately. One JSON object per shape;
// attention.py compares them with PyTorch's.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"

namespace ebb::bench {
namespace {

struct Case {
  std::int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, size = 0;
  bool causal = false;
};

struct Settings {
  DType dtype = bf16;
  bool tf32 = false;
  double dropout = 0.0;
  std::int64_t window = 0;  // 0: none
  int runs = 20;
};

// BATCHxLENGTHxHEADSxKEYHEADSxSIZE, and :causal or :full.
Case read_case(const std::string& text) {
  Case c;
  long numbers[5] = {};
  char mask[8] = {};
  const int read = std::sscanf(text.c_str(), "%ldx%ldx%ldx%ldx%ld:%7s", &numbers[0], &numbers[1],
                               &numbers[2], &numbers[3], &numbers[4], mask);
  const std::string kind = mask;
  if (read != 6 || (kind != "causal" && kind != "full") ||
      *std::min_element(numbers, numbers + 5) < 1)
    throw std::invalid_argument(fmt::format(
        "a shape is BATCHxLENGTHxHEADSxKEYHEADSxSIZE:causal or :full, but came \"{}\"", text));
  c.batch = numbers[0], c.length = numbers[1], c.heads = numbers[2], c.kv_heads = numbers[3];
  c.size = numbers[4], c.causal = kind == "causal";
  return c;
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The layout of heads that projections produce, token by token.
nlohmann::ordered_json measure(const std::string& name, const Settings& settings) {
  const Case c = read_case(name);
  const auto number = [&](std::int64_t heads, std::uint64_t seed) {
    return permute(eval(random_normal({c.batch, c.length, heads, c.size}, 0.0, 1.0, settings.dtype,
                                      device::cuda(0), RandomKey{seed})),
                   {0, 2, 1, 3});
  };
  const Tensor q = number(c.heads, 1), k = number(c.kv_heads, 2), v = number(c.kv_heads, 3);
  AttentionOptions options{.causal = c.causal, .dropout = settings.dropout, .key = RandomKey{5}};
  if (settings.window > 0)  // the first key of each query
    options.mask =
        reshape(arange(c.length, i32, device::cuda(0)) - static_cast<double>(settings.window - 1),
                {c.length, 1});
  const Tensor o = scaled_dot_product_attention(q, k, v, options);
  CompileOptions compile;
  compile.plan.tf32 = settings.tf32;
  Program program({{}, grad(sum(cast(o, f32) * cast(number(c.heads, 4), f32)), {q, k, v}), {}},
                  compile);
  std::vector<double> forward, backward;
  for (int run = -3; run < settings.runs; ++run) {
    const std::vector<double> times = program.timed_run();
    for (std::size_t i = 0; i < times.size() && run >= 0; ++i) {
      const std::string_view op = program.plan().instructions[InstructionId(i)].op->name();
      if (op == "attention") forward.push_back(times[i]);
      if (op == "attention_grad") backward.push_back(times[i]);
    }
  }
  if (forward.empty() || backward.empty())
    throw std::logic_error("the program has no attention with a gradient");
  // Operations of the two products of forward and the five of backward; half of them with a causal
  // mask.
  const double product = 2.0 * static_cast<double>(c.batch * c.heads * c.size) *
                         static_cast<double>(c.length) * static_cast<double>(c.length) *
                         (c.causal ? 0.5 : 1.0);
  const double f = median(forward), b = median(backward);
  return {{"case", name},
          {"dtype", std::string(ebb::name(settings.dtype))},
          {"forward_ms", f},
          {"backward_ms", b},
          {"forward_tflops", 2.0 * product / f * 1e-9},
          {"backward_tflops", 5.0 * product / b * 1e-9}};
}

int run(int argc, char** argv) {
  std::vector<std::string> names;
  std::string dtype = "bfloat16";
  Settings settings;
  CLI::App app("Times attention on a GPU.", "ebb_attention_bench");
  app.add_option("shapes", names, "BATCHxLENGTHxHEADSxKEYHEADSxSIZE:causal, or :full")->required();
  app.add_option("--dtype", dtype, "bfloat16, float16 or float32")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32"}))
      ->capture_default_str();
  app.add_flag("--tf32", settings.tf32, "Products of float32 with factors rounded to TF32");
  app.add_option("--dropout", settings.dropout, "Probability with which a weight is dropped")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  app.add_option("--window", settings.window,
                 "Keys that a query sees, up to its own; rates count all that :causal has (0: all)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--runs", settings.runs, "Runs whose median is printed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  settings.dtype = dtype == "float32" ? f32 : dtype == "float16" ? f16 : bf16;
  for (const std::string& name : names) std::cout << measure(name, settings).dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace ebb::bench

int main(int argc, char** argv) {
  try {
    return ebb::bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "ebb_attention_bench: error: " << e.what() << std::endl;
    return 1;
  }
}
