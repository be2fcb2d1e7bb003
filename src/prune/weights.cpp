#include "ebb/prune/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/parallel.h"
#include "ebb/error.h"
#include "prune/error_spread.h"

namespace ebb::prune {
namespace {

constexpr std::string_view method_names[] = {"magnitude", "wanda", "sparsegpt"};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void check(const WeightMatrix& m, const Sparsity& sparsity) {
  if (m.outputs < 1 || m.inputs < 1 || m.weights.size() != at(m.outputs * m.inputs))
    throw ShapeError(fmt::format("prune: a matrix of {} × {} weights is expected, but {} came",
                                 m.outputs, m.inputs, m.weights.size()));
  if (sparsity.pattern) {
    const auto [kept, of] = *sparsity.pattern;
    if (kept < 1 || kept >= of)
      throw ValueError(fmt::format(
          "prune: a pattern keeps N of every M, with 0 < N < M, but is {}:{}", kept, of));
    if (m.inputs % of != 0)
      throw ValueError(
          fmt::format("prune: {} inputs do not divide into runs of {} for the pattern "
                      "{}:{}",
                      m.inputs, of, kept, of));
  } else if (!(sparsity.share > 0.0 && sparsity.share < 1.0)) {
    throw ValueError(fmt::format("prune: the share of zeros must be between 0 and 1, but is {}",
                                 sparsity.share));
  }
}

// Marks the `count` lowest scores; of equal ones, the first.
void mark_lowest(std::span<const double> scores, std::int64_t count, std::span<char> goes) {
  if (std::any_of(scores.begin(), scores.end(), [](double s) { return std::isnan(s); }))
    throw ValueError("prune: a weight or an input is not a number");
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int64_t a, std::int64_t b) {
    return scores[at(a)] != scores[at(b)] ? scores[at(a)] < scores[at(b)] : a < b;
  };
  std::nth_element(order.begin(), order.begin() + count, order.end(), before);
  for (std::int64_t i = 0; i < count; ++i) goes[at(order[at(i)])] = 1;
}

// Marks the lowest scores of runs of `run` scores: by the pattern, or the share of each run.
std::vector<char> lowest_of_runs(std::span<const double> scores, std::int64_t run,
                                 const Sparsity& sparsity) {
  std::vector<char> goes(scores.size(), 0);
  std::int64_t count = static_cast<std::int64_t>(sparsity.share * static_cast<double>(run));
  if (sparsity.pattern) {
    run = sparsity.pattern->of;
    count = run - sparsity.pattern->kept;
  }
  for (std::size_t first = 0; first < scores.size(); first += at(run))
    if (count > 0)
      mark_lowest(scores.subspan(first, at(run)), count, std::span(goes).subspan(first, at(run)));
  return goes;
}

void clear(const WeightMatrix& m, const std::vector<char>& goes) {
  for (std::size_t i = 0; i < goes.size(); ++i)
    if (goes[i]) m.weights[i] = 0.0;
}

// The columns [first, last) of a matrix, while SparseGPT chooses among them and spreads the errors.
class ColumnBlock {
 public:
  ColumnBlock(const WeightMatrix& m, std::span<const double> factor, std::int64_t first,
              std::int64_t last)
      : m_(m),
        factor_(factor),
        first_(first),
        last_(last),
        goes_(at(m.outputs * width()), 0),
        errors_(at(m.outputs * width())) {}

  void choose(const Sparsity& sparsity) {
    if (sparsity.pattern) return;  // chosen once earlier columns have spread their errors
    std::vector<double> scores(goes_.size());
    for (std::int64_t r = 0; r < m_.outputs; ++r)
      for (std::int64_t c = 0; c < width(); ++c) scores[at(r * width() + c)] = score(r, c);
    const auto count =
        static_cast<std::int64_t>(sparsity.share * static_cast<double>(scores.size()));
    if (count > 0) mark_lowest(scores, count, goes_);
  }

  // Rows do not depend on each other.
  void spread(const Sparsity& sparsity) {
    parallel_for(m_.outputs, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        spread_row(m_, factor_, r, first_, last_, errors_.data() + r * width(),
                   [&](std::int64_t column, double w) {
                     const std::int64_t c = column - first_;
                     if (sparsity.pattern && column % sparsity.pattern->of == 0)
                       choose_run(r, c, sparsity);
                     return goes_[at(r * width() + c)] ? 0.0 : w;
                   });
    });
  }

 private:
  std::int64_t width() const { return last_ - first_; }
  double& weight(std::int64_t r, std::int64_t c) const {
    return m_.weights[at(r * m_.inputs + first_ + c)];
  }
  double factor(std::int64_t i, std::int64_t j) const { return factor_[at(i * m_.inputs + j)]; }
  double score(std::int64_t r, std::int64_t c) const {
    const double scaled = weight(r, c) / factor(first_ + c, first_ + c);
    return scaled * scaled;
  }

  // Picks one weight after another, because nothing may be allocated here.
  void choose_run(std::int64_t r, std::int64_t c, const Sparsity& sparsity) {
    const auto [kept, of] = *sparsity.pattern;
    char* goes = goes_.data() + r * width() + c;
    for (std::int64_t n = kept; n < of; ++n) {
      std::int64_t least = -1;
      for (std::int64_t i = 0; i < of; ++i)
        if (!goes[i] && (least < 0 || score(r, c + i) < score(r, c + least))) least = i;
      goes[least] = 1;
    }
  }

  const WeightMatrix& m_;
  std::span<const double> factor_;  // U, with UᵀU = H⁻¹
  std::int64_t first_, last_;
  std::vector<char> goes_;
  std::vector<double> errors_;
};

}  // namespace

Method method_named(std::string_view name) {
  for (std::size_t i = 0; i < std::size(method_names); ++i)
    if (method_names[i] == name) return static_cast<Method>(i);
  throw ValueError(fmt::format("a method is magnitude, wanda or sparsegpt, but \"{}\" came", name));
}
std::string_view name(Method method) { return method_names[static_cast<std::size_t>(method)]; }

void prune_by_magnitude(const WeightMatrix& m, const Sparsity& sparsity) {
  check(m, sparsity);
  std::vector<double> scores(m.weights.size());
  std::transform(m.weights.begin(), m.weights.end(), scores.begin(),
                 [](double w) { return std::abs(w); });
  clear(m, lowest_of_runs(scores, m.outputs * m.inputs, sparsity));
}

void prune_by_wanda(const WeightMatrix& m, std::span<const double> squares,
                    const Sparsity& sparsity) {
  check(m, sparsity);
  if (squares.size() != at(m.inputs))
    throw ShapeError(
        fmt::format("prune: {} sums of squares are expected, one for each input, but "
                    "{} came",
                    m.inputs, squares.size()));
  std::vector<double> scores(m.weights.size());
  for (std::int64_t r = 0; r < m.outputs; ++r)
    for (std::int64_t c = 0; c < m.inputs; ++c)
      scores[at(r * m.inputs + c)] =
          std::abs(m.weights[at(r * m.inputs + c)]) * std::sqrt(squares[at(c)]);
  clear(m, lowest_of_runs(scores, m.inputs, sparsity));
}

void prune_by_sparsegpt(const WeightMatrix& m, std::span<double> hessian, const Sparsity& sparsity,
                        const SparseGptOptions& options) {
  check(m, sparsity);
  if (options.block < 1 || (sparsity.pattern && options.block % sparsity.pattern->of != 0))
    throw ValueError(fmt::format(
        "prune: SparseGPT's block of columns must be a multiple of the pattern's length, but is {}",
        options.block));
  to_inverse_factor(m, hessian, options.damping);
  for (std::int64_t first = 0; first < m.inputs; first += options.block) {
    ColumnBlock columns(m, hessian, first, std::min(first + options.block, m.inputs));
    columns.choose(sparsity);
    columns.spread(sparsity);
  }
}

}  // namespace ebb::prune
