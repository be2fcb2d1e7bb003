#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ebb/masks.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

SampleInput bytes(std::vector<double> values) {
  SampleInput input = SampleInput::index({static_cast<std::int64_t>(values.size())}, 1, u8);
  input.values = std::move(values);
  return input;
}
SampleInput share(double value) {
  SampleInput input = SampleInput::fixed({}, 0.0, 1.0);
  input.values = {value};
  return input;
}
// Distinct absolute values that bfloat16 can distinguish, in no particular order, of both signs.
SampleInput scattered(const Shape& shape, std::int64_t by) {
  SampleInput input = SampleInput::fixed(shape, 0.0, 1.0);
  const std::int64_t count = shape.elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<double>(i * by % count + 1);
    input.values.push_back(i % 3 == 0 ? -place : place);
  }
  return input;
}

TEST(Mask, Samples) {
  check({"a mask of 15 weights",
         {SampleInput::real({3, 5}), bytes({0b10110101, 0b11010010})},
         [](const auto& x) { return std::vector{masked(x[0], x[1])}; }});
  check({"two elements for each weight",
         {SampleInput::real({9, 2}), bytes({0b01101001, 0b1})},
         [](const auto& x) { return std::vector{masked(x[0], x[1], 9)}; }});
  check({"no weights", {SampleInput::real({0, 4}), bytes({})}, [](const auto& x) {
           return std::vector{masked(x[0], x[1])};
         }});
  for (const auto score : {MaskScore::magnitude, MaskScore::value})
    for (const std::int64_t of : {0, 4})
      for (const double wanted : {-1.0, 0.0, 0.5, 0.75})
        check({"shrinking",
               {scattered({8, 7}, 11), bytes({0xff, 0xfb, 0x3f, 0xff, 0xf0, 0xff, 0xff}),
                share(wanted)},
               [=](const auto& x) {
                 return std::vector{shrunk_mask(x[0], x[1], cast(x[2], f64), score, {of, 0})};
               }});
  check({"runs along the last axis",
         {scattered({5, 6}, 7), bytes({0xff, 0xff, 0xff, 0xff}), share(1.0 / 3.0)},
         [](const auto& x) {
           return std::vector{
               shrunk_mask(x[0], x[1], cast(x[2], f64), MaskScore::magnitude, {3, -1})};
         }});
  for (const double wanted : {-1.0, 0.3, 0.9})
    check({"regrowing",
           {scattered({8, 7}, 11), bytes({0x0f, 0xa5, 0x3f, 0x00, 0xf0, 0x11, 0x80}), share(wanted),
            scattered({8, 7}, 27)},
           [](const auto& x) {
             return std::vector{regrown_mask(x[0], x[1], cast(x[2], f64), x[3])};
           }});
}

std::vector<bool> bits_of(const Tensor& mask, std::size_t count) {
  const auto all = mask.to_vector<std::uint8_t>();
  std::vector<bool> bits;
  for (std::size_t i = 0; i < count; ++i) bits.push_back(all[i / 8] >> i % 8 & 1);
  return bits;
}
Tensor packed(const std::vector<bool>& bits) {
  std::vector<std::uint8_t> all((bits.size() + 7) / 8, 0);
  for (std::size_t i = 0; i < bits.size(); ++i)
    all[i / 8] = static_cast<std::uint8_t>(all[i / 8] | (bits[i] ? 1 << i % 8 : 0));
  return Tensor::from(all, {static_cast<std::int64_t>(all.size())});
}
Tensor number(double value) { return Tensor::from(std::vector<double>{value}, {}); }

std::vector<float> noise(std::size_t count, std::uint64_t seed, std::uint32_t levels) {
  const Philox numbers(RandomState{seed, 0}, RandomKey{1});
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)  // few levels make ties
    values.push_back(static_cast<float>(numbers(i)[0] % levels) - static_cast<float>(levels / 2));
  return values;
}

// The indices of the candidates, sorted by score, the smallest first, and of equal ones the first.
std::vector<std::size_t> order_by(const std::vector<double>& scores,
                                  const std::vector<bool>& candidates) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (candidates[i]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  return order;
}

// Compared with sorting, at sizes of several pieces and with many equal scores.
TEST(Mask, ChoosesAsSortingDoes) {
  for (const std::size_t count : {1u, 7u, 1000u, 70001u})
    for (const std::uint32_t levels : {3u, 100u, 1u << 20})
      for (const double wanted : {0.0, 0.25, 0.8, 1.0}) {
        const std::vector<float> w = noise(count, 1, levels), g = noise(count, 2, levels);
        std::vector<bool> live;
        for (const float x : noise(count, 3, 10)) live.push_back(x > -4.0f);
        const Shape shape{static_cast<std::int64_t>(count)};
        const Tensor mask = packed(live);
        std::vector<double> size(count), value(count), gain(count);
        for (std::size_t i = 0; i < count; ++i)
          size[i] = std::abs(w[i]), value[i] = w[i], gain[i] = -std::abs(g[i]);

        for (const auto score : {MaskScore::magnitude, MaskScore::value}) {
          std::vector<bool> expected = live;
          const auto dead = static_cast<std::size_t>(std::count(live.begin(), live.end(), false));
          const auto goes = static_cast<std::size_t>(wanted * static_cast<double>(count));
          const auto order = order_by(score == MaskScore::magnitude ? size : value, live);
          for (std::size_t i = 0; i + dead < goes; ++i) expected[order[i]] = false;
          EXPECT_EQ(bits_of(eval(shrunk_mask(Tensor::from(w, shape), mask, number(wanted), score)),
                            count),
                    expected)
              << count << " weights, " << levels << " levels, share " << wanted;
        }

        std::vector<bool> expected = live;
        const auto alive = static_cast<double>(std::count(live.begin(), live.end(), true));
        const auto moved = static_cast<std::size_t>(wanted * alive);
        const auto drops = order_by(size, live);
        for (std::size_t i = 0; i < moved; ++i) expected[drops[i]] = false;
        std::vector<bool> candidates(count);
        for (std::size_t i = 0; i < count; ++i) candidates[i] = !expected[i];
        const auto grows = order_by(gain, candidates);
        for (std::size_t i = 0; i < moved; ++i) expected[grows[i]] = true;
        EXPECT_EQ(bits_of(eval(regrown_mask(Tensor::from(w, shape), mask, number(wanted),
                                            Tensor::from(g, shape))),
                          count),
                  expected)
            << count << " weights, " << levels << " levels, share " << wanted;
      }
}

TEST(Mask, RunsKeepTheLargestAndNeverReviveWeights) {
  const Tensor w = Tensor::from(std::vector<float>{4, -1, 2, -3, 1, 1, 1, 1}, {2, 4});
  const auto after = [&](double wanted, const std::vector<bool>& live, std::int64_t axis,
                         std::int64_t of) {
    return bits_of(
        eval(shrunk_mask(w, packed(live), number(wanted), MaskScore::magnitude, {of, axis})), 8);
  };
  const std::vector<bool> all(8, true);
  EXPECT_EQ(after(0.5, all, 1, 4), (std::vector<bool>{1, 0, 0, 1, 0, 0, 1, 1}));
  EXPECT_EQ(after(0.25, {1, 1, 1, 0, 0, 1, 1, 0}, 1, 4),
            (std::vector<bool>{1, 1, 1, 0, 0, 1, 1, 0}));
  EXPECT_EQ(after(0.5, all, 0, 2), (std::vector<bool>{1, 0, 1, 1, 0, 1, 0, 0}));
  EXPECT_EQ(after(-1.0, all, 1, 4), all);
}

TEST(Mask, GradientsThatAreNotFiniteChangeNothing) {
  const Tensor w = Tensor::from(std::vector<float>{1, 2, 3, 4}, {4});
  const float nan = std::nanf("");
  const std::vector<bool> live{true, true, false, false};
  EXPECT_EQ(bits_of(eval(regrown_mask(w, packed(live), number(0.5),
                                      Tensor::from(std::vector<float>{0, 0, nan, 1}, {4}))),
                    4),
            live);
}

// The purpose of the ops: a variable and its mask change in place.
TEST(Mask, VariablesChangeInPlace) {
  Variable weight(random_normal({64, 64}, 0.0, 1.0)), mask(full({512}, 255.0, u8));
  const Tensor wanted = input({{}, f64}, "share");
  const Tensor now = shrunk_mask(weight, mask, wanted, MaskScore::magnitude);
  Program program(
      {.inputs = {wanted}, .outputs = {}, .updates = {{mask, now}, {weight, masked(weight, now)}}});
  for (const Instruction& instruction : program.plan().instructions)
    EXPECT_NE(instruction.op->name(), "identity");
  program.run({number(0.9)});
  const auto values = weight.to_vector<float>();
  EXPECT_EQ(std::count(values.begin(), values.end(), 0.0f), static_cast<int>(0.9 * 4096));
}

TEST(Mask, Errors) {
  const Tensor w = zeros({4, 6}), mask = zeros({3}, u8), wanted = number(0.5);
  expect_error([&] { masked(w, zeros({4}, u8)); }, {"[masked]", "24 weights", "uint8 (3,)"});
  expect_error([&] { masked(w, mask, 23); }, {"[masked]", "24 elements", "23 weights"});
  expect_error([&] { shrunk_mask(w, mask, w, MaskScore::value); }, {"share", "float64 scalar"});
  expect_error(
      [&] {
        shrunk_mask(w, mask, wanted, MaskScore::value, {4, 1});
      },
      {"axis 1", "6 elements", "runs of 4"});
  expect_error([&] { shrunk_mask(w, mask, wanted, MaskScore::value, {4, 2}); }, {"axis 2"});
  expect_error([&] { regrown_mask(w, mask, wanted, zeros({6, 4})); }, {"gradients", "shape"});
  for (const char* text : {"4:2", "2", "0:4", "2:4x", "2:65", ""})
    expect_error([&] { pattern_named(text); }, {"N:M", text});
}

}  // namespace
}  // namespace ebb::test
