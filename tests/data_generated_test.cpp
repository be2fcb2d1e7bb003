// Generated data: the stated limits are compared with the results of the best classifier on the
// generated items.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "ebb/data/generated.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using namespace data;

std::vector<std::int64_t> first_items(std::int64_t count) {
  std::vector<std::int64_t> items(static_cast<std::size_t>(count));
  std::iota(items.begin(), items.end(), 0);
  return items;
}

void expect_made_by_item(const Dataset& dataset) {
  const std::int64_t a[] = {3, 8}, b[] = {8, 1, 3};
  const Batch first = dataset.batch(a, {1, 2}), second = dataset.batch(b, {3, 4});
  EXPECT_EQ(first.types(), dataset.types(2));
  const std::vector<double> x = values_of(first.x()), z = values_of(second.x());
  const std::size_t row = x.size() / 2;
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(row),
                         z.begin() + static_cast<std::ptrdiff_t>(2 * row)));
  EXPECT_TRUE(std::equal(x.begin() + static_cast<std::ptrdiff_t>(row), x.end(), z.begin()));
  EXPECT_FALSE(std::equal(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(row), z.begin()));
}

// --- MarkovText

TEST(DataGenerated, UniformMarkovTextHasTheEntropyOfItsSymbols) {
  const MarkovText text({.symbols = 8, .order = 2, .smoothing = 1, .sequence = 5});
  EXPECT_NEAR(text.entropy_rate(), std::log(8.0), 1e-12);
  EXPECT_NEAR(text.best_loss(), std::log(8.0), 1e-12);
}

// The plug-in estimate from counted (k + 1)-grams tends to the true conditional entropy; its bias
// is about (symbols^k · (symbols - 1)) / 2n, its deviation below 2 / sqrt(n) for so few symbols.
TEST(DataGenerated, MarkovTextHasItsEntropyRate) {
  for (int order : {1, 2, 3}) {
    const std::int64_t symbols = 4, sequence = 50;
    const MarkovText text({.symbols = symbols,
                           .order = order,
                           .branches = 2,
                           .smoothing = 0.1,
                           .sequence = sequence,
                           .seed = 11});
    const std::int64_t windows = 8000;
    const Batch batch = text.batch(first_items(windows), {});
    const std::vector<std::int32_t> x = batch.x().to_vector<std::int32_t>(),
                                    y = batch.y().to_vector<std::int32_t>();
    // Position from 1: the known symbols before it, and the next symbol.
    const auto conditional = [&](std::int64_t from, std::int64_t to, std::int64_t known) {
      std::map<std::int64_t, double> before, both;
      double n = 0;
      for (std::int64_t w = 0; w < windows; ++w)
        for (std::int64_t t = from; t <= to; ++t, ++n) {
          std::int64_t context = 0;
          for (std::int64_t i = t - known; i < t; ++i)
            context = context * symbols + x[static_cast<std::size_t>(w * sequence + i)];
          ++before[context];
          ++both[context * symbols + y[static_cast<std::size_t>(w * sequence + t - 1)]];
        }
      double sum = 0;
      for (const auto& [key, count] : both)
        sum -= count / n * std::log(count / before[key / symbols]);
      return sum;
    };
    EXPECT_NEAR(conditional(order, sequence, order), text.entropy_rate(), 0.004) << order;
    double total = text.entropy_rate() * static_cast<double>(sequence - order + 1);
    for (std::int64_t t = 1; t < order; ++t) total += conditional(t, t, t);
    EXPECT_NEAR(total / static_cast<double>(sequence), text.best_loss(), 0.002) << order;
    EXPECT_LT(text.entropy_rate(), std::log(4.0));
    EXPECT_GE(text.best_loss(), text.entropy_rate() - 1e-12);
    expect_made_by_item(text);
  }
}

TEST(DataGenerated, MarkovTextsDifferBySeedAndWindowsMayBeShorterThanTheOrder) {
  const MarkovText a({.seed = 1}), b({.seed = 2}),
      c({.symbols = 3, .order = 4, .branches = 2, .sequence = 2});
  EXPECT_NE(a.entropy_rate(), b.entropy_rate());
  EXPECT_GT(c.best_loss(), c.entropy_rate());
  EXPECT_EQ(c.batch(first_items(4), {}).types(), c.types(4));
}

// --- GaussianImages

TEST(DataGenerated, BestRuleReachesItsAccuracyOnGaussianImages) {
  const GaussianImages images(
      {.classes = 5, .channels = 2, .height = 8, .width = 6, .separation = 2, .seed = 3});
  const std::int64_t count = 20'000;
  const Batch batch = images.batch(first_items(count), {});
  const std::vector<float> x = batch.x().to_vector<float>();
  const std::vector<std::int32_t> y = batch.y().to_vector<std::int32_t>();
  std::int64_t right = 0;
  double squares = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t best = 0;
    double best_score = -1e30;
    for (std::int64_t c = 0; c < 5; ++c) {
      const std::span<const float> p = images.prototype(c);
      double score = 0;
      for (std::size_t i = 0; i < 96; ++i) score += p[i] * x[static_cast<std::size_t>(n) * 96 + i];
      if (score > best_score) best = c, best_score = score;
    }
    right += best == y[static_cast<std::size_t>(n)];
    for (std::size_t i = 0; i < 96; ++i) {
      const double noise = x[static_cast<std::size_t>(n) * 96 + i] -
                           images.prototype(y[static_cast<std::size_t>(n)])[i];
      squares += noise * noise;
    }
  }
  const double accuracy = static_cast<double>(right) / static_cast<double>(count);
  const double error = std::sqrt(0.25 / static_cast<double>(count));
  EXPECT_NEAR(accuracy, images.best_accuracy(), 4 * error);
  // The deviation of a mean of n squared normal numbers is sqrt(2 / n).
  EXPECT_NEAR(squares / (96.0 * static_cast<double>(count)), 1,
              4 * std::sqrt(2 / (96.0 * static_cast<double>(count))));
  expect_made_by_item(images);
}

TEST(DataGenerated, PrototypesAreOrthogonalAndTheTwoClassAccuracyIsThatOfTheTextbook) {
  const GaussianImages images({.classes = 2, .separation = 1.5});
  const std::span<const float> a = images.prototype(0), b = images.prototype(1);
  EXPECT_NEAR(std::inner_product(a.begin(), a.end(), b.begin(), 0.0), 0, 1e-6);
  EXPECT_NEAR(std::inner_product(a.begin(), a.end(), a.begin(), 0.0), 2.25, 1e-6);
  // Two points at distance d·sqrt(2): Φ(d / sqrt(2)).
  EXPECT_NEAR(images.best_accuracy(), std::erfc(-1.5 / 2) / 2, 1e-12);
  EXPECT_NEAR(GaussianImages({.classes = 1}).best_accuracy(), 1, 1e-12);
}

// --- LabelledSequences

TEST(DataGenerated, BestRuleReachesItsAccuracyOnLabelledSequences) {
  const LabelledSequences data({.classes = 3, .sequence = 24, .sequences = 40'000, .seed = 5});
  const Batch batch = data.batch(first_items(data.size()), {});
  const std::vector<std::int32_t> ids = batch.x().to_vector<std::int32_t>(),
                                  labels = batch.y().to_vector<std::int32_t>();
  double right = 0;  // in expectation over ties
  for (std::int64_t n = 0; n < data.size(); ++n) {
    std::array<int, 3> counts{};
    for (std::size_t t = 1; t < 24; ++t) {
      const std::int64_t owner = data.class_of(ids[static_cast<std::size_t>(n) * 24 + t]);
      if (owner >= 0) ++counts[static_cast<std::size_t>(owner)];
    }
    const int most = *std::max_element(counts.begin(), counts.end());
    if (counts[static_cast<std::size_t>(labels[static_cast<std::size_t>(n)])] == most)
      right += 1.0 / static_cast<double>(std::count(counts.begin(), counts.end(), most));
  }
  const auto count = static_cast<double>(data.size());
  EXPECT_NEAR(right / count, data.best_accuracy(), 4 * std::sqrt(0.25 / count));
  EXPECT_GT(data.best_accuracy(), 0.5);
  expect_made_by_item(data);
}

TEST(DataGenerated, LabelledSequencesAtTheirLimits) {
  EXPECT_NEAR(LabelledSequences({.classes = 5, .loyalty = 0}).best_accuracy(), 0.2, 1e-12);
  EXPECT_NEAR(LabelledSequences({.classes = 5, .signal = 0}).best_accuracy(), 0.2, 1e-12);
  EXPECT_NEAR(LabelledSequences({.signal = 1, .loyalty = 1}).best_accuracy(), 1, 1e-12);
  // One token of two classes: right if it is a word of its own class, half right if it is a word of
  // no class.
  EXPECT_NEAR(LabelledSequences({.classes = 2, .sequence = 2, .signal = 0.4, .loyalty = 0.5})
                  .best_accuracy(),
              0.4 * 0.75 + 0.6 * 0.5, 1e-12);
  EXPECT_NEAR(LabelledSequences({.classes = 1}).best_accuracy(), 1, 1e-12);
}

TEST(DataGenerated, RefusesOptionsThatCannotBe) {
  expect_error([] { MarkovText({.symbols = 1}); }, {"[MarkovText]", "1"});
  expect_error([] { MarkovText({.symbols = 64, .order = 5}); }, {"order 5"});
  expect_error([] { MarkovText({.branches = 65}); }, {"64", "65"});
  expect_error([] { MarkovText({.smoothing = 0}); }, {"smoothing", "0"});
  expect_error([] { GaussianImages({.classes = 25}); }, {"1 to 24", "25"});
  expect_error([] { GaussianImages({.separation = std::nan("")}); }, {"separation"});
  expect_error([] { GaussianImages({.height = 1 << 30}); }, {"(3, 1073741824, 32)"});
  expect_error([] { LabelledSequences({.vocabulary = 9}); }, {"10", "9"});
  expect_error([] { LabelledSequences({.signal = 1.5}); }, {"1.5"});
  const LabelledSequences data({.sequences = 2});
  const std::int64_t beyond[] = {2};
  expect_error([&] { data.batch(beyond, {}); }, {"item 2"});
}

}  // namespace
}  // namespace ebb::test
