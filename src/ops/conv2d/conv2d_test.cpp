#include "ops/conv2d/conv2d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ops/image_axes.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

constexpr ImageLayout layouts[] = {ImageLayout::channels_first, ImageLayout::channels_last};

// Checks a convolution in both layouts; `x` is (N, C, H, W).
void check_convolution(const char* name, const Shape& x, const Shape& weight,
                       Conv2dOptions options) {
  for (const ImageLayout layout : layouts) {
    options.layout = layout;
    check({.name = std::string(name) + ", " + std::string(ebb::name(layout)),
           .inputs = {SampleInput::real(from_channels_first(x, layout)), SampleInput::real(weight)},
           .function = [options](const auto& t) {
             return std::vector{conv2d(t[0], t[1], {}, options)};
           }});
  }
}

TEST(Conv2d, Gradients) {
  check_convolution("plain", {2, 3, 5, 6}, {4, 3, 3, 2}, {});
  check_convolution("padded", {2, 2, 4, 5}, {3, 2, 3, 3}, {.padding = 1});
  check_convolution("strided", {1, 2, 7, 6}, {3, 2, 3, 3}, {.stride = 2, .padding = 1});
  check_convolution("dilated", {2, 2, 7, 6}, {2, 2, 3, 2}, {.padding = 2, .dilation = 2});
  check_convolution("one by one", {3, 4, 3, 3}, {5, 4, 1, 1}, {});
  check_convolution("all different", {2, 2, 8, 9}, {3, 2, 2, 3},
                    {.stride = {2, 3}, .padding = {1, 2}, .dilation = {3, 1}});
  check_convolution("cells left over", {1, 2, 6, 8}, {2, 2, 3, 3}, {.stride = {2, 3}});
  check_convolution("larger padding than kernel", {1, 1, 2, 2}, {1, 1, 2, 2}, {.padding = 3});
}

TEST(Conv2d, Groups) {
  check_convolution("two groups", {2, 4, 4, 4}, {6, 2, 3, 3}, {.padding = 1, .groups = 2});
  check_convolution("depthwise", {2, 3, 5, 5}, {3, 1, 3, 3}, {.padding = 1, .groups = 3});
  check_convolution("depthwise, twice as many out", {1, 3, 5, 4}, {6, 1, 3, 3},
                    {.stride = 2, .padding = 1, .groups = 3});
}

TEST(Conv2d, Bias) {
  for (const ImageLayout layout : layouts)
    check({.name = "bias, " + std::string(name(layout)),
           .inputs = {SampleInput::real(from_channels_first(Shape{2, 2, 4, 5}, layout)),
                      SampleInput::real({3, 2, 3, 3}), SampleInput::real({3})},
           .function = [layout](const auto& t) {
             return std::vector{conv2d(t[0], t[1], t[2], {.padding = 1, .layout = layout})};
           }});
}

// Values as PyTorch's torch.nn.functional.conv2d gives them for x = 0, 1, 2, ... and weights
// 1, 2, 3, ...: small integers, so they are exact.
TEST(Conv2d, GoldenValues) {
  const auto counting = [](const Shape& shape, float first) {
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    std::iota(values.begin(), values.end(), first);
    return Tensor::from(values, shape);
  };
  using Values = std::vector<float>;
  EXPECT_EQ(conv2d(counting({1, 1, 3, 3}, 0), counting({1, 1, 2, 2}, 1)).to_vector<float>(),
            (Values{27, 37, 57, 67}));
  EXPECT_EQ(conv2d(counting({1, 2, 3, 3}, 0), counting({1, 2, 2, 2}, 1),
                   Tensor::from(Values{0.5f}, {1}), {.stride = 2, .padding = 1})
                .to_vector<float>(),
            (Values{72.5f, 169.5f, 222.5f, 464.5f}));
  EXPECT_EQ(conv2d(counting({1, 2, 4, 3}, 0), counting({2, 1, 2, 2}, 1), {},
                   {.dilation = {2, 1}, .groups = 2})
                .to_vector<float>(),
            (Values{48, 58, 78, 88, 416, 442, 494, 520}));
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  double scale = 0.0, worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    scale = std::max(scale, std::abs(y[i]));
    worst = std::max(worst, std::abs(x[i] - y[i]));
  }
  return worst / scale;
}

// Sizes at which the fast kernels run: blocks of channels, runs of images with a shorter last one.
TEST(Conv2d, FastKernelsAgreeWithFloat64) {
  const struct {
    Shape x, weight;
    Conv2dOptions options;
  } cases[] = {{{35, 16, 32, 32}, {16, 16, 3, 3}, {.padding = 1}},
               {{19, 32, 32, 32}, {32, 32, 3, 3}, {.padding = 1}},
               {{5, 64, 16, 16}, {32, 64, 1, 1}, {}},
               {{19, 3, 64, 60}, {24, 3, 3, 3}, {.stride = 2, .padding = 1}},
               {{9, 64, 32, 32}, {64, 1, 3, 3}, {.padding = 1, .groups = 64}},
               {{3, 256, 4, 4}, {256, 256, 3, 3}, {.padding = 1}}};
  for (const auto& c : cases) {
    const Tensor x = make_input(SampleInput::real(c.x), f32, 1),
                 w = make_input(SampleInput::real(c.weight), f32, 2);
    // The gradients of the image and the weight and the result, all with the channels first.
    const auto results = [&](DType dtype, ImageLayout layout) {
      Conv2dOptions options = c.options;
      options.layout = layout;
      const Tensor a = cast(x, dtype), b = cast(w, dtype);
      const Tensor y =
          as_channels_first(conv2d(from_channels_first(a, layout), b, {}, options), layout);
      const Tensor g = cast(make_input(SampleInput::real(y.shape()), f32, 3), dtype);
      std::vector<Tensor> all = grad(sum(y * g), {a, b});
      all.push_back(y);
      return eval(all);
    };
    const auto exact = results(f64, ImageLayout::channels_first);
    // Inputs and results are rounded to the dtype: a few units of its last place. In float64 the
    // layouts differ by the order of sums of up to 35 · 32 · 32 products.
    for (const auto& [dtype, tolerance] :
         {std::pair{f64, 1e-12}, {f32, 1e-5}, {f16, 2e-3}, {bf16, 2e-2}})
      for (const ImageLayout layout : layouts) {
        const auto actual = results(dtype, layout);
        for (std::size_t i = 0; i < exact.size(); ++i)
          EXPECT_LE(largest_difference(actual[i], exact[i]), tolerance)
              << to_string(c.x) << " with " << to_string(c.weight) << ", result " << i << " in "
              << name(dtype) << ", " << name(layout);
      }
  }
}

TEST(Conv2d, TheThreadCountMayChangeAfterBinding) {
  const Tensor x = make_input(SampleInput::real({8, 16, 16, 16}), f32, 1),
               w = make_input(SampleInput::real({16, 16, 3, 3}), f32, 2);
  const Tensor y = conv2d(x, w, {}, {.padding = 1});
  std::vector<Tensor> outputs = grad(sum(square(y)), {x, w});
  Program program({.inputs = {}, .outputs = outputs, .updates = {}});
  program.run();
  const auto before = program.output(1).to_vector<float>();
  const int count = threads();
  set_threads(count + 3);
  program.run();
  EXPECT_EQ(threads(), count + 3);
  set_threads(count);
  EXPECT_EQ(program.output(1).to_vector<float>(), before);
}

TEST(Conv2d, WorkspaceHoldsAFewImagesOnly) {
  const int before = threads();
  set_threads(2);
  for (DType dtype : {f64, f32, f16, bf16}) {
    const Arg x{{{256, 32, 32, 32}, dtype}, contiguous_strides({256, 32, 32, 32})},
        w{{{32, 32, 3, 3}, dtype}, contiguous_strides({32, 32, 3, 3})};
    const Arg image_and_weight[] = {x, w}, weight_and_image[] = {w, x}, images[] = {x, x};
    const Arg image[] = {x}, weight[] = {w};
    const Conv2dAttributes forward{.padding = 1}, to_image{.padding = 1, .size = 32},
        to_weight{.padding = 1, .size = 3};
    // Half types hold the images twice: widened, and reordered.
    const Bytes most = (dtype == f16 ? 2 : 1) * threads() * 1_MiB + 3_MiB;
    EXPECT_LE(
        bind_conv2d_cpu({conv2d_op(), image_and_weight, image, device::cpu}, forward).workspace,
        most);
    EXPECT_LE(bind_conv2d_input_grad_cpu(
                  {conv2d_input_grad_op(), weight_and_image, image, device::cpu}, to_image)
                  .workspace,
              most);
    EXPECT_LE(bind_conv2d_weight_grad_cpu({conv2d_weight_grad_op(), images, weight, device::cpu},
                                          to_weight)
                  .workspace,
              most);
  }
  set_threads(before);
}

TEST(Conv2d, EmptyBatch) {
  for (const ImageLayout layout : layouts)
    for (DType dtype : {f64, f32, f16, bf16}) {
      const Tensor x = zeros(from_channels_first(Shape{0, 2, 4, 4}, layout), dtype),
                   w = ones({3, 2, 3, 3}, dtype);
      const Tensor y = conv2d(x, w, {}, {.layout = layout});
      EXPECT_EQ(y.shape(), from_channels_first(Shape{0, 3, 2, 2}, layout));
      const auto g = eval(grad(sum(y), {x, w}));
      EXPECT_EQ(g[0].shape(), x.shape());
      EXPECT_EQ(values_of(g[1]), std::vector<double>(54, 0.0));
    }
}

TEST(Conv2d, Errors) {
  const Tensor x = zeros({2, 4, 5, 5}), w = zeros({6, 4, 3, 3});
  expect_error([&] { conv2d(x, zeros({6, 3, 3, 3})); }, {"[conv2d]", "3 channels", "have 4"});
  expect_error(
      [&] {
        conv2d(x, zeros({5, 2, 3, 3}), {}, {.groups = 2});
      },
      {"[conv2d]", "5 output channels", "2 groups"});
  expect_error([&] { conv2d(x, zeros({6, 4, 7, 3})); }, {"[conv2d]", "7 x 3", "5 x 5"});
  expect_error([&] { conv2d(x, w, zeros({4})); }, {"[conv2d]", "bias", "(6,)"});
  expect_error([&] { conv2d(x, w, {}, {.stride = {1, 0}}); }, {"[conv2d]", "stride", "(1, 0)"});
  expect_error([&] { conv2d(x, w, {}, {.padding = -1}); }, {"[conv2d]", "padding", "(-1, -1)"});
  expect_error([&] { conv2d(x, w, {}, {.dilation = 0}); }, {"[conv2d]", "dilation"});
  expect_error([&] { conv2d(x, w, {}, {.groups = 0}); }, {"[conv2d]", "groups", "0"});
  expect_error([&] { conv2d(x, zeros({6, 4, 3, 3}, f64)); }, {"[conv2d]", "float64"});
  expect_error([&] { conv2d(zeros({4, 5, 5}), w); }, {"[conv2d]"});
  expect_error([&] { conv2d(zeros({2, 4, 0, 5}), w); }, {"[conv2d]", "only the batch"});
  const Conv2dOptions last{.layout = ImageLayout::channels_last};
  expect_error([&] { conv2d(x, w, {}, last); }, {"[conv2d]", "4 channels", "have 5"});
  expect_error(
      [&] {
        conv2d(zeros({2, 5, 5, 4}), zeros({6, 4, 7, 3}), {}, last);
      },
      {"[conv2d]", "7 x 3", "5 x 5"});
  expect_error([&] { conv2d(zeros({2, 5, 5, 4}), zeros({6, 4, 3}), {}, last); }, {"[conv2d]"});
}

}  // namespace
}  // namespace ebb::test
