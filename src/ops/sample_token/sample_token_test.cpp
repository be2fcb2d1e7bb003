#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ebb/decode.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

std::vector<std::int32_t> ids_of(const Tensor& ids) { return ids.to_vector<std::int32_t>(); }

// `count` draws from one row of logits, each at its own position.
std::vector<std::int32_t> draws(const std::vector<float>& logits, std::int64_t count,
                                const SampleOptions& options, std::int64_t key = 5) {
  const std::int64_t size = static_cast<std::int64_t>(logits.size());
  const Tensor rows = expand(Tensor::from(logits, {1, size}), {count, size});
  return ids_of(sample_token(contiguous(rows), full({count}, static_cast<double>(key), i64),
                             arange(count, i32), options));
}

// Frequencies of many draws against probabilities, by χ² with three degrees of freedom or fewer.
void expect_frequencies(const std::vector<std::int32_t>& ids, const std::vector<double>& expected) {
  std::vector<double> counts(expected.size());
  for (const std::int32_t id : ids) counts.at(static_cast<std::size_t>(id)) += 1.0;
  double chi = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double mean = expected[i] * static_cast<double>(ids.size());
    if (mean == 0.0)
      EXPECT_EQ(counts[i], 0.0) << "token " << i;
    else
      chi += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  EXPECT_LT(chi, 16.27);  // exceeded by one seed in a thousand; the seed is fixed
}

TEST(SampleToken, Samples) {
  for (const SampleOptions& options : {SampleOptions{}, SampleOptions{.temperature = 0.7},
                                       SampleOptions{.temperature = 1.0, .top_k = 3},
                                       SampleOptions{.temperature = 1.3, .top_k = 5, .top_p = 0.6}})
    check({"rows of logits",
           {SampleInput::fixed({3, 37}, -4.0, 4.0), SampleInput::index({3}, 1 << 30),
            SampleInput::index({3}, 100, i32)},
           [options](const auto& x) {
             return std::vector{sample_token(x[0], x[1], x[2], options)};
           }});
}

TEST(SampleToken, GreedyTakesTheFirstOfTheLargest) {
  const Tensor x = Tensor::from(std::vector<float>{1, 3, 3, 2, -5, -1, -2, -1}, {2, 4});
  EXPECT_EQ(ids_of(sample_token(x, zeros({2}, i64), zeros({2}, i32))),
            (std::vector<std::int32_t>{1, 1}));
}

TEST(SampleToken, DrawsByProbability) {
  const std::vector<double> p{0.5, 0.25, 0.2, 0.05};
  std::vector<float> logits;
  for (const double x : p) logits.push_back(static_cast<float>(std::log(x) + 3.0));
  expect_frequencies(draws(logits, 20000, {.temperature = 1.0}), p);
  expect_frequencies(draws(logits, 20000, {.temperature = 1.0, .top_k = 2}),
                     {2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0});
  // 0.5 alone does not reach 0.6; together with 0.25 it does.
  expect_frequencies(draws(logits, 20000, {.temperature = 1.0, .top_p = 0.6}),
                     {2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0});
  // Of the two tokens that top_k leaves, the one with 2/3 reaches 0.6 alone.
  expect_frequencies(draws(logits, 1000, {.temperature = 1.0, .top_k = 2, .top_p = 0.6}),
                     {1.0, 0.0, 0.0, 0.0});
  double total = 0.0;
  std::vector<double> squares;
  for (const double x : p) squares.push_back(x * x), total += x * x;
  for (double& x : squares) x /= total;
  expect_frequencies(draws(logits, 20000, {.temperature = 0.5}), squares);
}

TEST(SampleToken, IsAFunctionOfKeyPositionAndLogits) {
  std::vector<float> logits(50, 0.0f);
  const SampleOptions options{.temperature = 1.0};
  const auto all = draws(logits, 64, options);
  EXPECT_EQ(draws(logits, 64, options), all);
  EXPECT_NE(draws(logits, 64, options, 6), all);
  const Tensor one = Tensor::from(logits, {1, 50});
  for (const std::int32_t at : {0, 17, 63})
    EXPECT_EQ(ids_of(sample_token(one, full({1}, 5.0, i64), full({1}, at, i32), options)).front(),
              all[static_cast<std::size_t>(at)]);
}

TEST(SampleToken, TellsOfLogitsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from(
      std::vector<float>{1, nan, 2, infinity, -infinity, -infinity, 0, -infinity, 3, 4}, {5, 2});
  const Tensor at = Tensor::from(std::vector<std::int32_t>{0, 0, 0, 0, -1}, {5});
  for (const double temperature : {0.0, 1.0})
    EXPECT_EQ(ids_of(sample_token(x, zeros({5}, i64), at, {.temperature = temperature})),
              (std::vector<std::int32_t>{-1, -1, -1, 0, 0}));
}

TEST(SampleToken, Errors) {
  const auto call = [](const SampleOptions& options) {
    return sample_token(zeros({1, 4}), zeros({1}, i64), zeros({1}, i32), options);
  };
  expect_error([&] { call({.temperature = -1.0}); }, {"[sample_token]", "temperature", "-1"});
  expect_error([&] { call({.temperature = 1.0, .top_k = -2}); }, {"top_k", "-2"});
  expect_error([&] { call({.temperature = 1.0, .top_p = 0.0}); }, {"top_p", "0"});
  expect_error([&] { call({.temperature = 1.0, .top_p = 1.5}); }, {"top_p", "1.5"});
  expect_error(
      [] {
        sample_token(zeros({1, 4}), zeros({2}, i64), zeros({1}, i32));
      },
      {"[sample_token]", "keys must be int64 (1,)"});
}

}  // namespace
}  // namespace ebb::test
