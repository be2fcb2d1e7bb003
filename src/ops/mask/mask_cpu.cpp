#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/mask/mask.h"

namespace ebb {
namespace {

constexpr std::int64_t bytes_at_once = 4096;  // of a mask, for one thread

// --- Applying

template <class T>
void apply_mask(const KernelArgs& args, std::int64_t weights, std::int64_t each) {
  const T* x = args.in<T>(0);
  const auto* mask = args.in<std::uint8_t>(1);
  T* out = args.out<T>();
  parallel_for((weights + 7) / 8, bytes_at_once, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const unsigned bits = mask[b];
      const std::int64_t first = b * 8, count = std::min<std::int64_t>(8, weights - first);
      if (each == 1 && count == 8) {
        for (int i = 0; i < 8; ++i) out[first + i] = bits >> i & 1 ? x[first + i] : T{};
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t k = (first + i) * each; k < (first + i + 1) * each; ++k)
          out[k] = bits >> i & 1 ? x[k] : T{};
    }
  });
}

// --- Choosing

constexpr int digits = 3, digit_bits[digits] = {10, 11, 11};  // of a key, from the highest
constexpr std::int64_t bins = 2048;

// The keys below `key` are chosen, and the first `of_equal` of those that equal it.
struct Cut {
  std::uint32_t key = 0;
  std::int64_t of_equal = 0;
};

// Scratch memory of a choice: a histogram for each worker, then numbers for pieces of the mask.
struct Scratch {
  std::int64_t* histograms;
  std::int64_t* equal_before;
  int workers;

  static std::int64_t pieces(std::int64_t bytes) {
    return (bytes + bytes_at_once - 1) / bytes_at_once;
  }
  static Bytes size(std::int64_t bytes, int workers) {
    return {8 * (bins * workers + pieces(bytes) + 1)};
  }
};

// Finds the cut below which `chosen` of `count` keys lie, digit by digit.
template <class Key>
Cut find_cut(std::int64_t count, std::int64_t chosen, const Key& key, const Scratch& scratch) {
  Cut cut{0, chosen};
  std::uint32_t known = 0;  // bits of the key that are decided
  int shift = 32;
  for (int d = 0; d < digits; ++d) {
    shift -= digit_bits[d];
    const std::uint32_t digit = (1u << digit_bits[d]) - 1;
    std::fill(scratch.histograms, scratch.histograms + bins * scratch.workers, 0);
    parallel_for_workers(count, 8 * bytes_at_once, scratch.workers,
                         [&](int worker, std::int64_t begin, std::int64_t end) {
                           std::int64_t* own = scratch.histograms + worker * bins;
                           for (std::int64_t i = begin; i < end; ++i)
                             if (const std::uint32_t k = key(i); (k & known) == cut.key)
                               ++own[k >> shift & digit];
                         });
    std::int64_t bin = 0;
    for (;; ++bin) {
      std::int64_t here = 0;
      for (int w = 0; w < scratch.workers; ++w) here += scratch.histograms[w * bins + bin];
      if (here >= cut.of_equal || bin == digit) break;
      cut.of_equal -= here;
    }
    cut.key |= static_cast<std::uint32_t>(bin) << shift;
    known |= digit << shift;
  }
  return cut;
}

// Calls set(byte, chosen), with a bit for each chosen weight, for every byte of the mask in place.
// A byte's keys are read before it is set.
template <class Key, class Set>
void choose(std::int64_t count, std::int64_t chosen, const Key& key, const Set& set,
            const Scratch& scratch) {
  if (chosen <= 0) return;
  const Cut cut = find_cut(count, chosen, key, scratch);
  const std::int64_t bytes = (count + 7) / 8, pieces = Scratch::pieces(bytes);
  const auto range = [&](std::int64_t piece) {
    return std::pair{piece * bytes_at_once, std::min(bytes, (piece + 1) * bytes_at_once)};
  };
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      std::int64_t equal = 0;
      for (std::int64_t i = range(p).first * 8; i < std::min(count, range(p).second * 8); ++i)
        equal += key(i) == cut.key;
      scratch.equal_before[p + 1] = equal;
    }
  });
  scratch.equal_before[0] = 0;
  for (std::int64_t p = 0; p < pieces; ++p) scratch.equal_before[p + 1] += scratch.equal_before[p];
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      std::int64_t left = cut.of_equal - scratch.equal_before[p];
      for (std::int64_t b = range(p).first; b < range(p).second; ++b) {
        unsigned chosen_bits = 0;
        for (std::int64_t i = b * 8; i < std::min(count, b * 8 + 8); ++i) {
          const std::uint32_t k = key(i);
          if (k < cut.key || (k == cut.key && left-- > 0)) chosen_bits |= 1u << (i - b * 8);
        }
        set(b, static_cast<std::uint8_t>(chosen_bits));
      }
    }
  });
}

struct Problem {
  std::int64_t count;
  ChooseMaskAttributes a;
  RunGeometry runs;

  bool by_magnitude() const { return a.kind != ChooseMaskAttributes::Kind::value; }
};

// The live weights of `mask`. Runs on one thread: a population count is quick.
std::int64_t count_live(const std::uint8_t* mask, std::int64_t count) {
  std::int64_t live = 0;
  for (std::int64_t b = 0; b < count / 8; ++b) live += std::popcount(mask[b]);
  if (count % 8 != 0) live += std::popcount(mask[count / 8] & ((1u << count % 8) - 1));
  return live;
}

// The value of element i as float32.
template <class T>
struct Values {
  const T* x;
  float operator()(std::int64_t i) const {
    return static_cast<float>(static_cast<Compute<T>>(x[i]));
  }
};

template <class T>
void shrink_runs(const Problem& p, const KernelArgs& args, double share) {
  const Values<T> value{args.in<T>(0)};
  const auto* before = args.in<std::uint8_t>(1);
  auto* after = args.out<std::uint8_t>();
  const std::int64_t kept = p.a.of - dead_in_run(share, p.a.of);
  const auto key = [&](std::int64_t i) {
    return mask_key::shrinking(value(i), p.by_magnitude(), before[i / 8] >> i % 8 & 1);
  };
  // A run may end in a byte that another thread writes. So each weight's place in its run is found
  // from the old mask, which is in other memory then.
  parallel_for((p.count + 7) / 8, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      unsigned bits = 0;
      for (std::int64_t i = b * 8; i < std::min(p.count, b * 8 + 8); ++i) {
        const std::uint32_t own = key(i);
        if (own == 0) continue;
        const std::int64_t first = p.runs.first(i);
        std::int64_t above = 0;
        for (std::int64_t n = 0; n < p.runs.of; ++n) {
          const std::int64_t j = first + n * p.runs.stride;
          const std::uint32_t other = key(j);
          above += other > own || (other == own && j > i);
        }
        if (above < kept) bits |= 1u << (i - b * 8);
      }
      after[b] = static_cast<std::uint8_t>(bits);
    }
  });
}

template <class T>
void shrink(const Problem& p, const KernelArgs& args, double share, const Scratch& scratch) {
  const Values<T> value{args.in<T>(0)};
  auto* mask = args.out<std::uint8_t>();
  const auto wanted = static_cast<std::int64_t>(share * static_cast<double>(p.count));
  choose(
      p.count, std::max(wanted, p.count - count_live(mask, p.count)),
      [&](std::int64_t i) {
        return mask_key::shrinking(value(i), p.by_magnitude(), mask[i / 8] >> i % 8 & 1);
      },
      [&](std::int64_t b, std::uint8_t chosen) {
        mask[b] = static_cast<std::uint8_t>(mask[b] & ~chosen);
      },
      scratch);
}

template <class T, class G>
void regrow(const Problem& p, const KernelArgs& args, double share, const Scratch& scratch) {
  const Values<T> weight{args.in<T>(0)};
  const Values<G> gradient{args.in<G>(3)};
  auto* mask = args.out<std::uint8_t>();
  for (std::int64_t i = 0; i < p.count; ++i)
    if (!mask_key::finite(gradient(i))) return;
  const auto dropped =
      static_cast<std::int64_t>(share * static_cast<double>(count_live(mask, p.count)));
  const auto live = [&](std::int64_t i) { return (mask[i / 8] >> i % 8 & 1) != 0; };
  choose(
      p.count, dropped, [&](std::int64_t i) { return mask_key::dropping(weight(i), live(i)); },
      [&](std::int64_t b, std::uint8_t chosen) {
        mask[b] = static_cast<std::uint8_t>(mask[b] & ~chosen);
      },
      scratch);
  choose(
      p.count, dropped, [&](std::int64_t i) { return mask_key::growing(gradient(i), live(i)); },
      [&](std::int64_t b, std::uint8_t chosen) {
        mask[b] = static_cast<std::uint8_t>(mask[b] | chosen);
      },
      scratch);
}

template <class T, class G>
void run(const Problem& p, const KernelArgs& args, int workers) {
  const double share = *args.in<double>(2);
  const std::int64_t bytes = (p.count + 7) / 8;
  const auto* before = args.in<std::uint8_t>(1);
  auto* after = args.out<std::uint8_t>();
  if (p.a.of != 0 && share >= 0.0) {
    if (before != after) return shrink_runs<T>(p, args, share);
    // Copies the old mask to the workspace, because neighbours in a run are in other bytes.
    auto* copy = args.scratch<std::uint8_t>();
    std::memcpy(copy, before, static_cast<std::size_t>(bytes));
    std::byte* inputs[] = {args.inputs[0], reinterpret_cast<std::byte*>(copy), args.inputs[2]};
    KernelArgs moved = args;
    moved.inputs = inputs;
    return shrink_runs<T>(p, moved, share);
  }
  if (before != after) std::memcpy(after, before, static_cast<std::size_t>(bytes));
  if (!(share >= 0.0)) return;
  auto* numbers = args.scratch<std::int64_t>();
  const Scratch scratch{numbers, numbers + bins * workers, workers};
  if (p.a.kind == ChooseMaskAttributes::Kind::regrow)
    regrow<T, G>(p, args, share, scratch);
  else
    shrink<T>(p, args, share, scratch);
}

}  // namespace

Kernel bind_masked_cpu(const KernelRequest& request, const MaskedAttributes& a) {
  const std::int64_t weights = a.weights,
                     each = weights == 0 ? 0 : request.in(0).shape().elements() / weights;
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[=](const KernelArgs& args) { apply_mask<T>(args, weights, each); }};
  });
}

Kernel bind_choose_mask_cpu(const KernelRequest& request, const ChooseMaskAttributes& a) {
  const Problem problem{request.in(0).shape().elements(), a,
                        a.of == 0 ? RunGeometry{1, 1} : runs_of(request.in(0).shape(), a)};
  const std::int64_t bytes = (problem.count + 7) / 8;
  const int workers = threads();
  const Bytes workspace = a.of == 0 ? Scratch::size(bytes, workers) : Bytes{bytes};
  return dispatch_choice(request, a, [&](auto weight, auto gradient) {
    using T = typename decltype(weight)::type;
    using G = typename decltype(gradient)::type;
    return Kernel{[=](const KernelArgs& args) { run<T, G>(problem, args, workers); }, workspace};
  });
}

}  // namespace ebb
