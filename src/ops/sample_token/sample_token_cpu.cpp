#include <algorithm>
#include <limits>

#include "core/parallel.h"
#include "core/vector_math.h"
#include "ops/dispatch.h"
#include "ops/sample_token/sample_token.h"

namespace ebb {
namespace {

struct Row {
  const float* x;
  std::int64_t count;
  const SampleTokenAttributes& a;
};

// The first of the largest; -1 if it is not finite or any logit is NaN.
std::int64_t most_likely(const Row& row) {
  float top = -std::numeric_limits<float>::infinity();
  bool broken = false;
  for (std::int64_t i = 0; i < row.count; ++i) {
    top = row.x[i] > top ? row.x[i] : top;
    broken |= row.x[i] != row.x[i];
  }
  if (broken || !std::isfinite(top)) return -1;
  return std::find(row.x, row.x + row.count, top) - row.x;
}

std::uint32_t count_threshold(const Row& row) {
  return sampling::threshold([&](std::uint32_t key) {
    std::int64_t reached = 0;
    for (std::int64_t i = 0; i < row.count; ++i) reached += sampling::ordered(row.x[i]) >= key;
    return reached >= row.a.top_k;
  });
}

// `masses`: scratch for the probabilities of the row.
std::uint32_t mass_threshold(const Row& row, float top, std::uint32_t least,
                             std::uint64_t* masses) {
  const float factor = static_cast<float>(1.0 / row.a.temperature);
  std::uint64_t total = 0;
  for (std::int64_t i = 0; i < row.count; ++i) {
    masses[i] =
        sampling::ordered(row.x[i]) < least
            ? 0
            : static_cast<std::uint64_t>(static_cast<double>(vm::exp((row.x[i] - top) * factor)) *
                                         sampling::mass_unit);
    total += masses[i];
  }
  const auto wanted = static_cast<std::uint64_t>(row.a.top_p * static_cast<double>(total));
  return std::max(least, sampling::threshold([&](std::uint32_t key) {
                    std::uint64_t reached = 0;
                    for (std::int64_t i = 0; i < row.count; ++i)
                      reached += sampling::ordered(row.x[i]) >= key ? masses[i] : 0;
                    return reached >= wanted && reached > 0;
                  }));
}

std::int64_t draw(const Row& row, std::int64_t best, std::uint32_t least, const Philox& numbers) {
  const float factor = static_cast<float>(1.0 / row.a.temperature), top = row.x[best];
  std::int64_t chosen = best;
  float highest = -std::numeric_limits<float>::infinity();
  for (std::int64_t first = 0; first < row.count; first += 4) {
    const std::int64_t count = std::min<std::int64_t>(4, row.count - first);
    const bool any = std::any_of(row.x + first, row.x + first + count,
                                 [&](float x) { return sampling::ordered(x) >= least; });
    if (!any) continue;
    const auto words = numbers(static_cast<std::uint64_t>(first / 4));
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = row.x[first + i];
      if (sampling::ordered(x) < least) continue;
      const float noise =
          -vm::log(-vm::log(sampling::open_uniform(words[static_cast<std::size_t>(i)])));
      const float value = (x - top) * factor + noise;
      if (value > highest) highest = value, chosen = first + i;
    }
  }
  return chosen;
}

std::int32_t sample(const Row& row, std::int64_t key, std::int32_t position,
                    std::uint64_t* masses) {
  if (position < 0) return 0;
  const std::int64_t best = most_likely(row);
  if (best < 0 || row.a.temperature == 0.0) return static_cast<std::int32_t>(best);
  std::uint32_t least = sampling::ordered(-std::numeric_limits<float>::max());
  if (row.a.top_k > 0 && row.a.top_k < row.count) least = std::max(least, count_threshold(row));
  if (row.a.top_p < 1.0) least = mass_threshold(row, row.x[best], least, masses);
  return static_cast<std::int32_t>(draw(row, best, least, sampling::numbers(key, position)));
}

}  // namespace

Kernel bind_sample_token_cpu(const KernelRequest& request, const SampleTokenAttributes& a) {
  return dispatch_floating(request, request.in(SampleToken::logits).dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = request.in(SampleToken::logits).shape()[0],
                       count = request.in(SampleToken::logits).shape()[1];
    // The workspace of each worker: the row as float32, then its probabilities.
    const Bytes wide = round_up({count * 4}, 64_B), area = wide + round_up({count * 8}, 64_B);
    const int workers =
        static_cast<int>(std::min<std::int64_t>(threads(), std::max<std::int64_t>(rows, 1)));
    return Kernel{[=](const KernelArgs& args) {
                    parallel_for_workers(
                        rows, 1, workers, [&](int worker, std::int64_t begin, std::int64_t end) {
                          float* x = args.scratch<float>(worker * area);
                          auto* masses = args.scratch<std::uint64_t>(worker * area + wide);
                          for (std::int64_t r = begin; r < end; ++r) {
                            const T* from = args.in<T>(SampleToken::logits) + r * count;
                            for (std::int64_t i = 0; i < count; ++i)
                              x[i] = static_cast<float>(static_cast<Compute<T>>(from[i]));
                            args.out<std::int32_t>()[r] =
                                sample({x, count, a}, args.in<std::int64_t>(SampleToken::keys)[r],
                                       args.in<std::int32_t>(SampleToken::positions)[r], masses);
                          }
                        });
                  },
                  workers * area};
  });
}

}  // namespace ebb
