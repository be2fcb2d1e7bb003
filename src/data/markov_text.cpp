#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/draws.h"
#include "data/items.h"
#include "data/windows.h"
#include "ebb/data/generated.h"

namespace ebb::data {
namespace {

constexpr std::int64_t most_contexts = std::int64_t{1} << 20;
constexpr std::uint64_t table_salt = 0x7461626C65ull, window_salt = 0x77696E646F77ull;

double entropy(const std::vector<double>& probabilities) {
  double sum = 0;
  for (double p : probabilities)
    if (p > 0) sum -= p * std::log(p);
  return sum;
}

}  // namespace

MarkovText::MarkovText(const MarkovOptions& options) : options_(options) {
  constexpr std::string_view who = "MarkovText";
  const auto& o = options_;
  require(o.symbols >= 2 && o.symbols <= most_contexts, who,
          fmt::format("2 to {} symbols are expected, but {} came", most_contexts, o.symbols));
  require(o.order >= 1, who, fmt::format("an order of at least 1 is expected, not {}", o.order));
  for (int i = 0; i < o.order; ++i) {
    contexts_ *= o.symbols;
    require(contexts_ <= most_contexts, who,
            fmt::format("{} symbols at order {} make more than {} contexts", o.symbols, o.order,
                        most_contexts));
  }
  require(o.branches >= 1 && o.branches <= o.symbols, who,
          fmt::format("1 to {} branches are expected, but {} came", o.symbols, o.branches));
  require(contexts_ <= (std::int64_t{1} << 26) / o.branches, who,
          fmt::format("{} contexts of {} branches are too large a table", contexts_, o.branches));
  require(o.smoothing > 0 && o.smoothing <= 1, who,
          fmt::format("smoothing must be above 0 and at most 1, but {} came", o.smoothing));
  require(o.sequence >= 1 && o.windows >= 1, who,
          fmt::format("sequence and windows must be positive, but {} and {} came", o.sequence,
                      o.windows));
  make_table();
  const std::vector<double> distribution = stationary();
  measure(distribution);
  start_.resize(distribution.size());
  std::partial_sum(distribution.begin(), distribution.end(), start_.begin());
}

void MarkovText::make_table() {
  const auto branches = static_cast<std::size_t>(options_.branches);
  branch_symbols_.reserve(static_cast<std::size_t>(contexts_) * branches);
  branch_probabilities_.reserve(branch_symbols_.capacity());
  std::vector<std::int32_t> chosen;
  std::vector<double> weights(branches);
  for (std::int64_t context = 0; context < contexts_; ++context) {
    Draws draws({mix(options_.seed ^ table_salt), 0}, static_cast<std::uint64_t>(context));
    // Floyd's algorithm for sampling without replacement.
    chosen.clear();
    for (std::int64_t last = options_.symbols - options_.branches; last < options_.symbols;
         ++last) {
      auto symbol = static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(last + 1)));
      if (std::find(chosen.begin(), chosen.end(), symbol) != chosen.end())
        symbol = static_cast<std::int32_t>(last);
      chosen.push_back(symbol);
    }
    // Exponential weights over their sum are uniform on the simplex.
    double total = 0;
    for (double& w : weights) total += w = draws.exponential();
    for (std::size_t b = 0; b < branches; ++b) {
      branch_symbols_.push_back(chosen[b]);
      branch_probabilities_.push_back(total > 0 ? weights[b] / total
                                                : 1.0 / static_cast<double>(branches));
    }
  }
}

// By power iteration. The smoothed part of the transition is computed once for all contexts that
// share their later symbols.
std::vector<double> MarkovText::stationary() const {
  const auto contexts = static_cast<std::size_t>(contexts_);
  const auto symbols = static_cast<std::size_t>(options_.symbols);
  const auto branches = static_cast<std::size_t>(options_.branches);
  const std::size_t tails = contexts / symbols;  // contexts without their oldest symbol
  const double uniform = options_.smoothing / static_cast<double>(symbols);
  std::vector<double> now(contexts, 1.0 / static_cast<double>(contexts)), next(contexts),
      tail(tails);
  constexpr int most_rounds = 100'000;
  for (int round = 0; round < most_rounds; ++round) {
    // Contexts in their order, without a division for each: c = oldest * tails + t.
    std::fill(tail.begin(), tail.end(), 0.0);
    for (std::size_t c = 0; c < contexts; c += tails)
      for (std::size_t t = 0; t < tails; ++t) tail[t] += now[c + t];
    for (std::size_t t = 0; t < tails; ++t)
      std::fill_n(next.begin() + static_cast<std::ptrdiff_t>(t * symbols), symbols,
                  tail[t] * uniform);
    for (std::size_t c = 0, t = 0; c < contexts; ++c, t = t + 1 == tails ? 0 : t + 1) {
      const double mass = now[c] * (1 - options_.smoothing);
      for (std::size_t b = c * branches; b < (c + 1) * branches; ++b)
        next[t * symbols + static_cast<std::size_t>(branch_symbols_[b])] +=
            mass * branch_probabilities_[b];
    }
    const double total = std::accumulate(next.begin(), next.end(), 0.0);
    double change = 0;
    for (std::size_t c = 0; c < contexts; ++c) {
      next[c] /= total;
      change += std::abs(next[c] - now[c]);
    }
    now.swap(next);
    if (change < 1e-14) return now;
  }
  throw ValueError(fmt::format(
      "[MarkovText] the source does not settle in {} rounds; more smoothing than {} is needed",
      most_rounds, options_.smoothing));
}

void MarkovText::measure(const std::vector<double>& distribution) {
  const auto symbols = static_cast<std::size_t>(options_.symbols);
  const auto branches = static_cast<std::size_t>(options_.branches);
  const double uniform = options_.smoothing / static_cast<double>(symbols);
  const double unlikely = -uniform * std::log(uniform);  // of a symbol that is no branch
  for (std::size_t c = 0; c < distribution.size(); ++c) {
    double row = static_cast<double>(symbols - branches) * unlikely;
    for (std::size_t b = c * branches; b < (c + 1) * branches; ++b) {
      const double p = uniform + (1 - options_.smoothing) * branch_probabilities_[b];
      row -= p * std::log(p);
    }
    entropy_rate_ += distribution[c] * row;
  }
  // H(next | t symbols) = H(t + 1 symbols) - H(t symbols) for t below k; the entropy rate above.
  std::vector<double> blocks(static_cast<std::size_t>(options_.order) + 1);  // H(t symbols)
  std::vector<double> marginal = distribution;
  for (int t = options_.order; t >= 1; --t) {
    blocks[static_cast<std::size_t>(t)] = entropy(marginal);
    std::vector<double> shorter(marginal.size() / symbols);
    for (std::size_t i = 0; i < marginal.size(); ++i) shorter[i / symbols] += marginal[i];
    marginal = std::move(shorter);
  }
  double total = 0;
  for (std::int64_t t = 1; t <= options_.sequence && t < options_.order; ++t)
    total += blocks[static_cast<std::size_t>(t) + 1] - blocks[static_cast<std::size_t>(t)];
  const std::int64_t full = std::max<std::int64_t>(0, options_.sequence - options_.order + 1);
  total += static_cast<double>(full) * entropy_rate_;
  best_loss_ = total / static_cast<double>(options_.sequence);
}

std::vector<TensorType> MarkovText::types(std::int64_t batch) const {
  return window_types(batch, options_.sequence, i32);
}

Batch MarkovText::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("MarkovText", items, size());
  const std::int64_t symbols = options_.symbols, tails = contexts_ / symbols;
  return window_batch<std::int32_t>(items, options_.sequence, [&](std::int64_t item, auto window) {
    Draws draws({mix(options_.seed ^ window_salt), 0}, static_cast<std::uint64_t>(item));
    const auto found = std::upper_bound(start_.begin(), start_.end() - 1, draws.uniform());
    std::int64_t context = found - start_.begin();
    const auto known = static_cast<std::size_t>(options_.order);
    std::int64_t digits = context;
    for (std::size_t i = known; i-- > 0; digits /= symbols)
      if (i < window.size()) window[i] = static_cast<std::int32_t>(digits % symbols);
    for (std::size_t i = known; i < window.size(); ++i) {
      std::int64_t symbol = 0;
      if (draws.uniform() < options_.smoothing) {
        symbol = static_cast<std::int64_t>(draws.below(static_cast<std::uint64_t>(symbols)));
      } else {
        double left = draws.uniform();
        std::int64_t b = context * options_.branches;
        const std::int64_t last = b + options_.branches - 1;
        while (b < last && left >= branch_probabilities_[static_cast<std::size_t>(b)])
          left -= branch_probabilities_[static_cast<std::size_t>(b++)];
        symbol = branch_symbols_[static_cast<std::size_t>(b)];
      }
      window[i] = static_cast<std::int32_t>(symbol);
      context = context % tails * symbols + symbol;
    }
  });
}

}  // namespace ebb::data
