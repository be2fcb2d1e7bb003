// Modules and layers: names, modes, freezing, and gradients through the ones models do not cover.
#include <gtest/gtest.h>

#include "ebb/nn/layers.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

struct Net : nn::Module<Net> {
  nn::Sequential body{at("body")};
  nn::Dropout dropout{at("dropout"), 0.5};
  Net() {
    body.add<nn::Linear>(4, 8).add(nn::Activation::relu).add<nn::Linear>(8, 3, nn::Bias::no);
  }
  Tensor forward(const Tensor& x) { return dropout(body(x)); }
};

std::vector<std::string> paths(const std::vector<nn::NamedVariable>& variables) {
  std::vector<std::string> result;
  for (const nn::NamedVariable& v : variables) result.push_back(v.path);
  return result;
}

TEST(Modules, ParametersAreFoundByPath) {
  auto net = make<Net>(device::cpu, bf16);
  EXPECT_EQ(paths(net.parameters()),
            (std::vector<std::string>{"body.0.weight", "body.0.bias", "body.2.weight"}));
  EXPECT_EQ(net.parameter_count(), 4 * 8 + 8 + 8 * 3);
  for (const nn::NamedVariable& p : net.parameters()) EXPECT_EQ(p.variable.dtype(), bf16);
  net.body.freeze();
  EXPECT_TRUE(net.trainable_parameters().empty());
}

TEST(Modules, DropoutFollowsTheModeUnlessHeld) {
  auto net = make<Net>(device::cpu, f32);
  const Tensor x = eval(ones({64, 4}));
  const auto zeros_in = [&] {
    const std::vector<double> values = values_of(net(x));
    return std::count(values.begin(), values.end(), 0.0);
  };
  EXPECT_EQ(zeros_in(), 0);
  const nn::ForwardScope training(nn::Mode::train);
  EXPECT_GT(zeros_in(), 48);  // of 192, half expected
  net.hold_in_evaluation();
  EXPECT_EQ(zeros_in(), 0);
}

TEST(Modules, ErrorsNameTheModule) {
  auto net = make<Net>(device::cpu, f32);
  expect_error([&] { net(zeros({2, 5})); }, {"[matmul]", "\"body.0\"", "5 and 4"});
}

// Self-attention with grouped heads in blocks of both orders, differentiated in their input.
TEST(Layers, TransformerBlocksOfBothOrders) {
  for (nn::NormOrder order : {nn::NormOrder::pre, nn::NormOrder::post}) {
    nn::TransformerBlockOptions options;
    options.attention = {.heads = 2, .head_size = 3, .key_value_heads = 1, .causal = true};
    options.hidden = 5;
    options.norm = order;
    const nn::MakeScope scope(device::cpu, f64);
    nn::TransformerBlock block(nn::root_place(), 4, options);
    check({order == nn::NormOrder::pre ? "pre" : "post",
           {SampleInput::real({2, 3, 4})},
           [&](const auto& x) { return std::vector{block(x[0])}; },
           /*tolerance=*/1e-6,
           /*half_tolerance_factor=*/4.0,
           /*second_order=*/true,
           /*low_precision=*/false});  // the block's parameters are float64
  }
}

}  // namespace
}  // namespace ebb::test
