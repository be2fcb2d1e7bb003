// One block per row. Sums are integers, so their order does not matter.
#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/sample_token/sample_token.h"

namespace ebb {
namespace {

using namespace cuda;

constexpr int row_threads = 1024;

struct Candidate {
  float value;
  std::int64_t at;
};
struct Better {
  __device__ Candidate operator()(const Candidate& a, const Candidate& b) const {
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
  }
};

template <class S>
__global__ void __launch_bounds__(row_threads)
    sample_kernel(SampleTokenAttributes a, const S* logits, std::int64_t count,
                  const std::int64_t* keys, const std::int32_t* positions, std::int32_t* out) {
  const S* row = logits + static_cast<std::int64_t>(blockIdx.x) * count;
  const Group<row_threads> block{static_cast<int>(threadIdx.x)};
  const std::int32_t position = positions[blockIdx.x];
  if (position < 0) {
    if (threadIdx.x == 0) out[blockIdx.x] = 0;
    return;
  }
  const auto at = [&](std::int64_t i) { return static_cast<float>(widen(row[i])); };
  const auto each = [&](const auto& body) {
    for (std::int64_t i = threadIdx.x; i < count; i += row_threads) body(i, at(i));
  };

  Candidate best{-infinity<float>(), 0x7fffffff};
  int broken = 0;
  each([&](std::int64_t i, float x) {
    broken |= x != x;
    best = Better{}(best, {x, i});
  });
  best = block.join(best, Better{});
  broken = block.largest(broken);
  if (broken != 0 || !(best.value > -infinity<float>() && best.value < infinity<float>())) {
    if (threadIdx.x == 0) out[blockIdx.x] = -1;
    return;
  }
  if (a.temperature == 0.0) {
    if (threadIdx.x == 0) out[blockIdx.x] = static_cast<std::int32_t>(best.at);
    return;
  }

  const float factor = static_cast<float>(1.0 / a.temperature);
  std::uint32_t least = sampling::ordered(-3.402823466e38f);
  if (a.top_k > 0 && a.top_k < count) {
    const std::uint32_t found = sampling::threshold([&](std::uint32_t key) {
      unsigned long long reached = 0;
      each([&](std::int64_t, float x) { reached += sampling::ordered(x) >= key; });
      return block.sum(reached) >= static_cast<unsigned long long>(a.top_k);
    });
    least = found > least ? found : least;
  }
  if (a.top_p < 1.0) {
    const auto mass = [&](float x) {
      return static_cast<unsigned long long>(
          static_cast<double>(exponential((x - best.value) * factor)) * sampling::mass_unit);
    };
    const auto reached_by = [&](std::uint32_t key) {
      unsigned long long reached = 0;
      each([&](std::int64_t, float x) {
        if (sampling::ordered(x) >= key) reached += mass(x);
      });
      return block.sum(reached);
    };
    const unsigned long long total = reached_by(least);
    const auto wanted = static_cast<unsigned long long>(a.top_p * static_cast<double>(total));
    const std::uint32_t floor = least;
    const std::uint32_t found = sampling::threshold([&](std::uint32_t key) {
      const unsigned long long reached = reached_by(key > floor ? key : floor);
      return reached >= wanted && reached > 0;
    });
    least = found > least ? found : least;
  }

  const Philox numbers = sampling::numbers(keys[blockIdx.x], position);
  Candidate chosen{-infinity<float>(), best.at};
  for (std::int64_t first = 4 * static_cast<std::int64_t>(threadIdx.x); first < count;
       first += 4 * row_threads) {
    bool any = false;
    for (int i = 0; i < 4; ++i)
      any |= first + i < count && sampling::ordered(at(first + i)) >= least;
    if (!any) continue;
    const auto words = numbers(static_cast<std::uint64_t>(first / 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= count) break;
      const float x = at(first + i);
      if (sampling::ordered(x) < least) continue;
      const float noise = -::logf(-::logf(sampling::open_uniform(words[i])));
      chosen = Better{}(chosen, {(x - best.value) * factor + noise, first + i});
    }
  }
  chosen = block.join(chosen, Better{});
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<std::int32_t>(chosen.at);
}

}  // namespace

Kernel bind_sample_token_cuda(const KernelRequest& request, const SampleTokenAttributes& a) {
  return dispatch_floating(request, request.in(SampleToken::logits).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const std::int64_t rows = request.in(SampleToken::logits).shape()[0],
                       count = request.in(SampleToken::logits).shape()[1];
    return Kernel{[=](const KernelArgs& args) {
      launch({args, "sample_token", dim3(static_cast<unsigned>(rows)), dim3(row_threads)},
             sample_kernel<S>, a, args.in<S>(SampleToken::logits), count,
             args.in<std::int64_t>(SampleToken::keys),
             args.in<std::int32_t>(SampleToken::positions), args.out<std::int32_t>());
    }};
  });
}

}  // namespace ebb
