// Data whose best possible result is known, made on the fly and without files. The seed determines
// a source (its table, its prototypes); the seed and the item's number determine an item. Train and
// test sets are `Subset`s of one source that share no items.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

// --- Text

struct MarkovOptions {
  std::int64_t symbols = 64;  // V
  int order = 1;              // k: how many symbols back the next one depends on
  std::int64_t branches = 4;  // symbols that are likely after a context
  double smoothing = 0.02;    // probability that the next symbol is any of the V instead
  std::int64_t sequence = 128, windows = std::int64_t{1} << 20;
  std::uint64_t seed = 0;
};

// A stationary Markov source of order k. After each of its V^k contexts come `branches` symbols
// with probabilities from a flat Dirichlet distribution; smoothing makes every context reachable,
// so the source has one stationary distribution. Items are windows of T + 1 symbols that begin in
// it: x, y int32 (B, T).
class MarkovText : public Dataset {
 public:
  explicit MarkovText(const MarkovOptions& options = {});

  // The source's entropy in nats per symbol, given at least k previous symbols: no model has a
  // lower mean loss.
  double entropy_rate() const { return entropy_rate_; }

  // The same if the first symbols of a window have fewer than k predecessors: the limit of a
  // perfect model's mean loss on batches.
  double best_loss() const { return best_loss_; }

  std::int64_t size() const override { return options_.windows; }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  void make_table();
  std::vector<double> stationary() const;
  void measure(const std::vector<double>& stationary);

  MarkovOptions options_;
  std::int64_t contexts_ = 1;                 // V^k; the oldest symbol counts most
  std::vector<std::int32_t> branch_symbols_;  // (contexts, branches)
  std::vector<double> branch_probabilities_;  // (contexts, branches), rows sum to 1
  std::vector<double> start_;                 // cumulated stationary distribution
  double entropy_rate_ = 0, best_loss_ = 0;
};

// --- Images

struct GaussianImageOptions {
  std::int64_t classes = 10, channels = 3, height = 32, width = 32;
  double separation = 3;  // norm of a prototype in deviations of a pixel's noise
  std::int64_t images = 50'000;
  std::uint64_t seed = 0;
};

// An image is the prototype of its class plus independent normal noise of deviation 1 in every
// pixel. Prototypes are smooth (waves of at most one and a half periods) and orthogonal, so the
// accuracy of the best possible classifier is an integral over one variable. x float32 (N, C, H,
// W), y int32 (N).
class GaussianImages : public Dataset {
 public:
  explicit GaussianImages(const GaussianImageOptions& options = {});

  double best_accuracy() const { return best_accuracy_; }
  std::span<const float> prototype(std::int64_t of_class) const;
  std::int64_t label(std::int64_t item) const;

  std::int64_t size() const override { return options_.images; }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  GaussianImageOptions options_;
  std::vector<float> prototypes_;  // (classes, C, H, W)
  double best_accuracy_ = 0;
};

// --- Labelled sequences

struct LabelledSequenceOptions {
  std::int64_t classes = 4, vocabulary = 1000, sequence = 64;
  double signal = 0.2;   // share of tokens that are words of some class
  double loyalty = 0.3;  // share of those that are certain to be words of the sequence's own class
  std::int64_t sequences = 10'000;
  std::uint64_t seed = 0;
};

// Id 1, then T - 1 independent tokens. Every class has the same number of words. With probability
// `signal` a token is a word of a class (with probability `loyalty` of the sequence's own class,
// otherwise of any), and otherwise a word of no class. The best possible classifier chooses the
// class with the most words; its accuracy is a finite sum. ids int32 (B, T), labels int32 (B), mask
// bool (B, T), all true.
class LabelledSequences : public Dataset {
 public:
  explicit LabelledSequences(const LabelledSequenceOptions& options = {});

  double best_accuracy() const { return best_accuracy_; }
  std::int64_t class_of(std::int32_t token) const;  // -1: a word of no class

  std::int64_t size() const override { return options_.sequences; }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  LabelledSequenceOptions options_;
  std::vector<std::int32_t> words_;  // classes × words_each_ of the classes, then the rest
  std::vector<std::int32_t> owner_;  // by token
  std::int64_t words_each_ = 0;
  double best_accuracy_ = 0;
};

}  // namespace ebb::data
