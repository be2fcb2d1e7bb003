// A group gives the bits of its calls, on every device.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/ebb.h"
#include "ops/group/group.h"
#include "passes/passes.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"
#include "support/random_graph.h"

namespace ebb::test {
namespace {

// Steps on parameters of many sizes, clipped by the norm of all gradients.
struct Training {
  optim::StateStore store;
  std::vector<nn::NamedVariable> parameters;
  Graph graph;

  // Odd sizes, sizes of models, sums in several slices, and some that are too large for groups.
  static constexpr std::int64_t sizes[] = {768,  3072, 5,    1,    2304,  64,   6400, 4096,  1023,
                                           1024, 1025, 2048, 8191, 16384, 9999, 7,    40000, 65536};

  Training(const optim::Optimizer& optimizer, DType dtype, DType gradient_dtype, Device device) {
    const Tensor rate = input({{}, f64}, "rate", device), step = input({{}, f64}, "step", device);
    std::vector<Tensor> gradients;
    for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
      const Shape shape = i % 4 == 3 ? Shape{1, sizes[i], 1} : Shape{sizes[i]};
      parameters.push_back(
          {fmt::format("p{}", i),
           Variable(random_normal(shape, 0.0, 1.0, dtype, device, RandomKey{2 * i}))});
      // Made anew in each step, from the step's own random numbers.
      const Tensor noise =
          random_normal(shape, 0.0, 1.0, gradient_dtype, device, RandomKey{2 * i + 1});
      const Tensor made = tanh(noise * 0.1);
      made.node()->set_category(Category::gradients);
      gradients.push_back(gradient_dtype == dtype ? made : cast(made, dtype));
    }
    const Tensor norm = optim::global_norm(gradients);
    graph = {.inputs = {rate, step},
             .outputs = {norm},
             .updates = optimizer.updates(parameters, gradients, rate, step,
                                          optim::clip_scale(norm, 5.0), store)};
  }

  // Norms, parameters and state of some steps: on CUDA started, recorded and replayed.
  Image run(Program& program) const {
    Image image;
    for (int step = 0; step < 3; ++step) {
      program.feed(0, 1e-2);
      program.feed(1, step + 1.0);
      program.run();
      image.push_back(bytes_of(program.output(0)));
    }
    for (const nn::NamedVariable& p : parameters) image.push_back(bytes_of(p.variable));
    for (const auto& [path, variable] : store.all()) image.push_back(bytes_of(variable));
    return image;
  }
};

std::size_t calls_in_groups(const Plan& plan) {
  std::size_t count = 0;
  for (const Instruction& instruction : plan.instructions)
    if (instruction.op->name().ends_with("_group"))
      count += instruction.attributes.as<GroupAttributes>().calls.size();
  return count;
}

// On the CPU, groups are made only for this test.
Plan plan_in_groups(const Graph& graph, const CompileOptions& options, Device device) {
  if (device != device::cpu) return plan_program(graph, options);
  return make_plan(group_small(insert_copies(fuse_pointwise(graph)), Device::Kind::cpu),
                   options.plan);
}

void expect_same_bits(const std::string& what, const optim::Optimizer& optimizer, DType dtype,
                      DType gradient, Device device) {
  SCOPED_TRACE(fmt::format("{} on {}", what, to_string(device)));
  CompileOptions options{.seed = 7};
  Image images[2];
  for (const bool group : {false, true}) {
    options.passes = group ? all_pass_names() : passes_without(all_pass_names(), {"group_small"});
    const Training training(optimizer, dtype, gradient, device);
    Plan plan = group ? plan_in_groups(training.graph, options, device)
                      : plan_program(training.graph, options);
    check_plan(plan);
    // The update and the sum of squares of each parameter whose state takes at most 64 KiB.
    const std::int64_t most = (64 << 10) / (dtype == f64 ? 8 : 4);
    const auto small = std::count_if(std::begin(Training::sizes), std::end(Training::sizes),
                                     [&](std::int64_t size) { return size <= most; });
    EXPECT_EQ(calls_in_groups(plan), group ? 2 * static_cast<std::size_t>(small) : 0u);
    if (device != device::cpu && !cuda_present()) return;
    Program program(training.graph, std::move(plan), options);
    images[group] = training.run(program);
  }
  EXPECT_TRUE(images[0] == images[1]) << "a group has other bits than its calls";
}

void on_every_device(const std::string& what, const optim::Optimizer& optimizer, DType dtype,
                     DType gradient) {
  if (checks() == Checks::all) expect_same_bits(what, optimizer, dtype, gradient, device::cpu);
  if (built_with_cuda()) expect_same_bits(what, optimizer, dtype, gradient, device::cuda(0));
}

TEST(Group, BitsOfAdam) {
  for (const DType dtype : {f32, f64, bf16, f16})
    on_every_device(fmt::format("adam in {}", name(dtype)), optim::AdamW{}, dtype, dtype);
  on_every_device("gradients in float16", optim::AdamW{}, f32, f16);
  on_every_device("gradients in bfloat16", optim::Adam{.weight_decay = 0.1}, f32, bf16);
  on_every_device("moments in bfloat16", optim::AdamW{.state = bf16}, f32, f32);
  on_every_device("moments by chance",
                  optim::AdamW{.state = bf16, .rounding = optim::Rounding::stochastic}, f32, f32);
}

TEST(Group, BitsOfParametersInEveryForm) {
  using Kind = ParameterForm::Kind;
  for (const ParameterForm form :
       {ParameterForm{Kind::stochastic}, ParameterForm{Kind::compensated},
        ParameterForm{Kind::completed, 16}, ParameterForm{Kind::completed, 8}}) {
    const std::string what = Attributes(form).text();
    on_every_device(fmt::format("adam, {}", what), optim::Optimizer(optim::AdamW{}).with_form(form),
                    bf16, bf16);
    on_every_device(fmt::format("sgd, {}", what),
                    optim::Optimizer(optim::SGD{.momentum = 0.9}).with_form(form), bf16, bf16);
    on_every_device(fmt::format("sgd without momentum, {}", what),
                    optim::Optimizer(optim::SGD{}).with_form(form), bf16, bf16);
  }
}

TEST(Group, BitsOfOtherUpdates) {
  for (const DType dtype : {f32, bf16}) {
    on_every_device(fmt::format("sgd in {}", name(dtype)),
                    optim::SGD{.momentum = 0.9, .nesterov = true}, dtype, dtype);
    on_every_device(fmt::format("lion in {}", name(dtype)), optim::Lion{.weight_decay = 0.1}, dtype,
                    dtype);
    on_every_device(fmt::format("adam of 8 bits in {}", name(dtype)),
                    optim::AdamW8bit{.min_quantised_elements = 1}, dtype, dtype);
    on_every_device(fmt::format("adam of 4 bits in {}", name(dtype)),
                    optim::AdamW4bit{.min_quantised_elements = 1}, dtype, dtype);
  }
  on_every_device("lion with a mean in bfloat16", optim::Lion{.state = bf16}, f32, bf16);
}

}  // namespace
}  // namespace ebb::test
