#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/draws.h"
#include "data/items.h"
#include "data/labelled_batch.h"
#include "ebb/data/generated.h"

namespace ebb::data {
namespace {

constexpr std::int32_t start_id = 1, first_word = 2;
constexpr std::uint64_t words_salt = 0x776F726473ull, sequence_salt = 0x7365717565ull;

using Counts = std::vector<double>;  // by number of tokens

// Distribution of the sum of two independent counts, truncated to the first list's length.
Counts sum_of(const Counts& a, std::span<const double> b) {
  Counts result(a.size());
  for (std::size_t j = 0; j < b.size(); ++j)
    for (std::size_t i = 0; i + j < a.size(); ++i) result[i + j] += a[i] * b[j];
  return result;
}

// e^-mean mean^n / n! for n up to `most`.
Counts poisson(double mean, std::size_t most) {
  Counts result(most + 1);
  if (mean == 0) {
    result[0] = 1;
    return result;
  }
  double logarithm = -mean;
  for (std::size_t n = 0; n <= most; ++n) {
    if (n > 0) logarithm += std::log(mean / static_cast<double>(n));
    result[n] = std::exp(logarithm);
  }
  return result;
}

// Probability that the true class has the most words, with random tie-breaking. Word counts of the
// true class, of each other class and of no class are multinomial, that is independent Poisson
// numbers conditioned on their sum. Sums over the true class's count and the number of tied
// classes.
double accuracy_of_most(std::size_t length, std::int64_t classes, double own, double other) {
  const auto others = static_cast<std::size_t>(classes - 1);
  const double n = static_cast<double>(length);
  const Counts mine = poisson(n * own, length), theirs = poisson(n * other, length);
  const double none = std::max(0.0, 1 - own - other * static_cast<double>(others));
  const Counts rest = poisson(n * none, length);
  const double given = poisson(n, length)[length];
  double accuracy = 0;
  for (std::size_t k = 0; k <= length; ++k) {
    if (mine[k] < 1e-20) continue;  // negligible: together below the rounding error of the sum
    const auto fewer = std::span(theirs).first(k);  // one other class that has fewer than k words
    Counts total = rest;  // words of no class and of `behind` other classes with fewer words
    double ways = 1;      // to choose the tied classes
    for (std::size_t behind = 0; behind <= others; ++behind) {
      const std::size_t tied = others - behind, used = k * (tied + 1);
      if (used <= length)
        accuracy += ways * mine[k] * std::pow(theirs[k], static_cast<double>(tied)) *
                    total[length - used] / static_cast<double>(tied + 1);
      if (behind == others) break;
      total = sum_of(total, fewer);
      ways *= static_cast<double>(others - behind) / static_cast<double>(behind + 1);
    }
  }
  return std::min(1.0, accuracy / given);
}

}  // namespace

LabelledSequences::LabelledSequences(const LabelledSequenceOptions& options) : options_(options) {
  constexpr std::string_view who = "LabelledSequences";
  const auto& o = options_;
  // The exact sum takes C·T³ steps at worst.
  constexpr std::int64_t most_classes = 64, longest = 1024;
  require(o.classes >= 1 && o.classes <= most_classes, who,
          fmt::format("1 to {} classes are expected, but {} came", most_classes, o.classes));
  require(o.sequence >= 2 && o.sequence <= longest, who,
          fmt::format("sequences of 2 to {} are expected, but {} came", longest, o.sequence));
  constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  require(o.vocabulary >= first_word + 2 * o.classes && o.vocabulary <= largest, who,
          fmt::format("a vocabulary of {} to {} is expected, but {} came",
                      first_word + 2 * o.classes, largest, o.vocabulary));
  require(o.signal >= 0 && o.signal <= 1 && o.loyalty >= 0 && o.loyalty <= 1, who,
          fmt::format("signal and loyalty lie between 0 and 1, but {} and {} came", o.signal,
                      o.loyalty));
  require(o.sequences >= 1, who,
          fmt::format("at least one sequence is expected, but {} came", o.sequences));
  words_.resize(static_cast<std::size_t>(o.vocabulary - first_word));
  std::iota(words_.begin(), words_.end(), first_word);
  Draws draws({mix(o.seed ^ words_salt), 0}, 0);
  for (std::size_t left = words_.size(); left > 1; --left)
    std::swap(words_[left - 1], words_[draws.below(left)]);
  // Half of the words belong to classes.
  words_each_ = static_cast<std::int64_t>(words_.size()) / (2 * o.classes);
  owner_.assign(static_cast<std::size_t>(o.vocabulary), -1);
  for (std::int64_t i = 0; i < words_each_ * o.classes; ++i)
    owner_[static_cast<std::size_t>(words_[static_cast<std::size_t>(i)])] =
        static_cast<std::int32_t>(i / words_each_);
  const double any = o.signal * (1 - o.loyalty) / static_cast<double>(o.classes);
  best_accuracy_ = accuracy_of_most(static_cast<std::size_t>(o.sequence - 1), o.classes,
                                    any + o.signal * o.loyalty, any);
}

std::int64_t LabelledSequences::class_of(std::int32_t token) const {
  require(token >= 0 && token < options_.vocabulary, "LabelledSequences",
          fmt::format("token {} was asked for, but there are {}", token, options_.vocabulary));
  return owner_[static_cast<std::size_t>(token)];
}

std::vector<TensorType> LabelledSequences::types(std::int64_t batch) const {
  return labelled_types(batch, options_.sequence);
}

Batch LabelledSequences::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("LabelledSequences", items, size());
  const auto& o = options_;
  return labelled_batch(items, o.sequence, [&](std::int64_t item, auto ids) {
    Draws draws({mix(o.seed ^ sequence_salt), 0}, static_cast<std::uint64_t>(item));
    const auto pick = [&](std::int64_t count) {
      return static_cast<std::int64_t>(draws.below(static_cast<std::uint64_t>(count)));
    };
    const std::int64_t label = pick(o.classes), owned = words_each_ * o.classes;
    ids[0] = start_id;
    for (std::size_t i = 1; i < ids.size(); ++i) {
      std::int64_t word = 0;
      if (draws.uniform() >= o.signal)
        word = owned + pick(static_cast<std::int64_t>(words_.size()) - owned);
      else if (draws.uniform() < o.loyalty)
        word = label * words_each_ + pick(words_each_);
      else
        word = pick(owned);
      ids[i] = words_[static_cast<std::size_t>(word)];
    }
    return Labelled{static_cast<std::int32_t>(label), ids.size()};
  });
}

}  // namespace ebb::data
