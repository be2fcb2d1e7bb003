#include "ops/pool/pool.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/image_axes.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using Values = std::vector<float>;

// Distinct numbers far apart in a scattered order: differences do not change which is the largest,
// and half types hold them exactly.
SampleInput distinct(const Shape& shape) {
  SampleInput input = SampleInput::real(shape);
  const std::int64_t count = shape.elements();
  std::int64_t step = 37;
  while (count % step == 0) ++step;
  for (std::int64_t i = 0; i < count; ++i)
    input.values.push_back(static_cast<double>(i * step % count - count / 2) / 16.0);
  return input;
}

struct Window {
  const char* name;
  Shape x;
  Size2d kernel, stride, padding;
};
const Window windows[] = {
    {"halves", {2, 3, 4, 6}, 2, 0, 0},
    {"overlapping", {1, 2, 7, 6}, 3, 2, 1},
    {"steps of one", {1, 2, 5, 4}, 3, 1, 1},
    {"gaps", {2, 1, 7, 8}, 2, 3, 0},
    {"all different", {1, 2, 6, 9}, {2, 3}, {1, 2}, {1, 0}},
    {"cells left over", {1, 1, 5, 7}, 2, 2, 0},
};

constexpr ImageLayout layouts[] = {ImageLayout::channels_first, ImageLayout::channels_last};

std::string named(const char* what, ImageLayout layout) {
  return std::string(what) + ", " + std::string(name(layout));
}

TEST(Pool, MaxGradients) {
  for (const ImageLayout layout : layouts)
    for (const Window& w : windows)
      check({named(w.name, layout),
             {distinct(from_channels_first(w.x, layout))},
             [w, layout](const auto& t) {
               return std::vector{square(max_pool2d(t[0], w.kernel, w.stride, w.padding, layout))};
             }});
}

TEST(Pool, AvgGradients) {
  for (const ImageLayout layout : layouts)
    for (CountPad count : {CountPad::no, CountPad::yes})
      for (const Window& w : windows)
        check({named(w.name, layout),
               {SampleInput::real(from_channels_first(w.x, layout))},
               [w, count, layout](const auto& t) {
                 return std::vector{
                     square(avg_pool2d(t[0], w.kernel, w.stride, w.padding, count, layout))};
               }});
}

TEST(Pool, GlobalAvg) {
  for (const ImageLayout layout : layouts)
    check({named("global", layout),
           {SampleInput::real(from_channels_first(Shape{2, 3, 4, 5}, layout))},
           [layout](const auto& t) { return std::vector{global_avg_pool2d(t[0], layout)}; }});
}

// Sums have one order in both layouts, even with more channels than are processed at a time.
TEST(Pool, BothLayoutsGiveTheSameBits) {
  for (const std::int64_t channels : {3, 300})
    for (const DType dtype : {f64, f32, bf16}) {
      const Tensor x = make_input(SampleInput::real({2, channels, 7, 6}), dtype, 1);
      const auto results = [&](ImageLayout layout) {
        const Tensor in = from_channels_first(x, layout);
        const Tensor largest = as_channels_first(max_pool2d(in, 3, 2, 1, layout), layout),
                     mean =
                         as_channels_first(avg_pool2d(in, 3, 2, 1, CountPad::no, layout), layout);
        const Tensor g = make_input(SampleInput::real(largest.shape()), dtype, 2);
        std::vector<Tensor> all{largest, mean};
        for (const Tensor& y : {largest, mean}) all.push_back(grad(sum(y * g), {x})[0]);
        std::vector<std::vector<double>> values;
        for (const Tensor& each : eval(all)) values.push_back(values_of(each));
        return values;
      };
      EXPECT_EQ(results(ImageLayout::channels_last), results(ImageLayout::channels_first))
          << channels << " channels in " << name(dtype);
    }
}

// Lines longer than the band that a kernel works on at a time.
TEST(Pool, LongLines) {
  const Tensor x = make_input(SampleInput::real({1, 1, 3, 1100}), f64, 5);
  const std::vector<double> in = values_of(x);
  const auto cell = [&](std::int64_t r, std::int64_t c) {
    return r < 0 || r >= 3 || c < 0 || c >= 1100 ? -INFINITY
                                                 : in[static_cast<std::size_t>(r * 1100 + c)];
  };
  const Tensor y = max_pool2d(x, 3, 2, 1);
  const std::vector<double> pooled = values_of(y), g = values_of(grad(sum(y), {x})[0]);
  const std::int64_t width = y.shape()[3];
  std::vector<double> expected(in.size(), 0.0);
  for (std::int64_t p = 0; p < 2; ++p)
    for (std::int64_t q = 0; q < width; ++q) {
      double best = -INFINITY;
      std::int64_t at = 0;
      for (std::int64_t i = -1; i < 2; ++i)
        for (std::int64_t j = -1; j < 2; ++j)
          if (const double v = cell(2 * p + i, 2 * q + j); v > best)
            best = v, at = (2 * p + i) * 1100 + 2 * q + j;
      EXPECT_EQ(pooled[static_cast<std::size_t>(p * width + q)], best);
      expected[static_cast<std::size_t>(at)] += 1.0;
    }
  EXPECT_EQ(g, expected);
}

TEST(Pool, FirstOfEqualsGetsTheGradient) {
  const Tensor x =
      Tensor::from(Values{1, 1, 1, 1, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, {2, 1, 2, 2});
  EXPECT_EQ(grad(sum(max_pool2d(x, 2)), {x})[0].to_vector<float>(),
            (Values{1, 0, 0, 0, 1, 0, 0, 0}));
}

TEST(Pool, NaNWins) {
  const Tensor x = Tensor::from(Values{1, NAN, 3, 2, 5, 4, 7, 6}, {2, 1, 2, 2});
  const Values y = max_pool2d(x, 2).to_vector<float>();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 7.0f);
  EXPECT_EQ(grad(sum(max_pool2d(x, 2)), {x})[0].to_vector<float>(),
            (Values{0, 1, 0, 0, 0, 0, 1, 0}));
}

// As PyTorch gives them for 0, 1, ..., 8.
TEST(Pool, GoldenValues) {
  const Tensor x = Tensor::from(Values{0, 1, 2, 3, 4, 5, 6, 7, 8}, {1, 1, 3, 3});
  EXPECT_EQ(max_pool2d(x, 2, 1).to_vector<float>(), (Values{4, 5, 7, 8}));
  EXPECT_EQ(max_pool2d(x, 3, 2, 1).to_vector<float>(), (Values{4, 5, 7, 8}));
  EXPECT_EQ(avg_pool2d(x, 2, 2, 1).to_vector<float>(), (Values{0, 0.75f, 2.25f, 6}));
  EXPECT_EQ(avg_pool2d(x, 2, 2, 1, CountPad::no).to_vector<float>(), (Values{0, 1.5f, 4.5f, 6}));
}

TEST(Pool, EmptyBatch) {
  const Tensor x = zeros({0, 3, 4, 4});
  EXPECT_EQ(eval(max_pool2d(x, 2)).shape(), (Shape{0, 3, 2, 2}));
  EXPECT_EQ(eval(grad(sum(max_pool2d(x, 2) + avg_pool2d(x, 2)), {x}))[0].shape(), x.shape());
}

TEST(Pool, Errors) {
  const Tensor x = zeros({1, 2, 40, 40});
  expect_error([&] { max_pool2d(x, 17); }, {"[max_pool2d]", "256", "17 x 17", "289"});
  expect_error([&] { max_pool2d(x, 3, 1, 2); }, {"[max_pool2d]", "half of the kernel", "(2, 2)"});
  expect_error([&] { avg_pool2d(x, 0); }, {"[avg_pool2d]", "kernel", "(0, 0)"});
  expect_error([&] { avg_pool2d(x, 41); }, {"[avg_pool2d]", "41 x 41", "40 x 40"});
  expect_error([&] { max_pool2d(x, 2, {0, 1}); }, {"[max_pool2d]", "stride", "(0, 1)"});
  expect_error([&] { avg_pool2d(zeros({2, 4, 4}), 2); }, {"[avg_pool2d]"});
  expect_error([&] { max_pool2d(zeros({1, 1, 4, 4}, i32), 2); }, {"[max_pool2d]", "int32"});
  EXPECT_EQ(avg_pool2d(x, 40).shape(), (Shape{1, 2, 1, 1}));
  expect_error([&] { avg_pool2d(x, 3, 0, 0, CountPad::yes, ImageLayout::channels_last); },
               {"[avg_pool2d]", "3 x 3", "2 x 40"});
}

}  // namespace
}  // namespace ebb::test
