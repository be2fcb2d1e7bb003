// Forward on the CPU: a worker takes a block of queries of one head, walks over the keys in tiles
// and keeps a running maximum and sum (Milakov and Gimelshein, 2018; Dao et al., 2022).
#include "core/parallel.h"
#include "core/vector_math.h"
#include "ops/attention/operands.h"
#include "ops/attention/panel_products.h"
#include "ops/attention/vector_products.h"

namespace ebb {
namespace {

using namespace attention;

template <class T, class Products>
class Forward {
  using C = Compute<T>;
  using V = simd::Vector<C>;
  static constexpr int width = lanes<C>, vectors = 2, step = simd::Simd<C>::width;

 public:
  Forward(const Problem& problem, int workers)
      : p_(problem), workers_(workers), products_(p_, Direction::forward, scratch_) {
    scores_ = scratch_.add<C>(tile_keys * width);
    result_ = scratch_.add<C>(simd::padded<C>(p_.value_size) * width);
    if (p_.dropout > 0.0) factors_ = scratch_.add<C>(tile_keys * width);
  }
  Bytes workspace() const { return workers_ * scratch_.size(); }

  void operator()(const KernelArgs& args) const {
    const std::int64_t blocks = (p_.queries + width - 1) / width;
    parallel_for_workers(p_.batches * p_.heads * blocks, 1, workers_,
                         [&](int worker, std::int64_t begin, std::int64_t end) {
                           Worker w(*this, args, worker);
                           for (std::int64_t unit = begin; unit < end; ++unit) {
                             // Alternates early and late blocks: with a causal mask the late ones
                             // take longer.
                             const std::int64_t turn = unit % blocks, head = unit / blocks;
                             const std::int64_t block =
                                 turn % 2 == 0 ? turn / 2 : blocks - 1 - turn / 2;
                             w.block(head / p_.heads, head % p_.heads, block * width);
                           }
                         });
  }

 private:
  struct Worker {
    const Problem& p;
    const KernelArgs& args;
    Philox philox;
    Products products;
    C *scores, *result, *factors;
    const std::byte* mask;

    Worker(const Forward& f, const KernelArgs& a, int worker)
        : p(f.p_),
          args(a),
          philox(a.random, f.p_.key),
          products(p, f.products_, a.scratch<std::byte>(worker * f.scratch_.size())) {
      const auto area = [&](Bytes offset) {
        return args.scratch<C>(worker * f.scratch_.size() + offset);
      };
      scores = area(f.scores_), result = area(f.result_), factors = area(f.factors_);
      mask = p.masked ? args.inputs[Attention::mask] : nullptr;
    }

    void block(std::int64_t b, std::int64_t h, std::int64_t first) {
      const std::int64_t count = std::min<std::int64_t>(width, p.queries - first);
      products.take_queries(args.in<T>(Attention::q) + p.q.at(b, h, first), p.q.row, count);
      std::fill_n(result, simd::padded<C>(p.value_size) * width, C(0));

      V highest[vectors], total[vectors] = {};
      for (V& v : highest) v = simd::spread(-std::numeric_limits<C>::infinity());
      const std::int64_t visible = p.visible(first + count), kv_head = h / p.group();
      for (std::int64_t j = p.first_tile(mask, b, first, count); j < visible; j += tile_keys) {
        const Place at{b, h, first, count, j, std::min<std::int64_t>(tile_keys, visible - j)};
        products.scores(args.in<T>(Attention::k) + p.k.at(b, kv_head, j), p.k.row, at.keys, scores);
        apply_masks<T>(p, at, mask, scores);
        weigh(at.keys, highest, total);
        if (p.dropout > 0.0) drop(at);
        products.add_values(args.in<T>(Attention::v) + p.v.at(b, kv_head, j), p.v.row, at.keys,
                            scores, result);
      }
      finish(b, h, first, count, highest, total);
    }

    // Turns scores into weights relative to the highest score so far, and rescales earlier sums to
    // the same base.
    void weigh(std::int64_t count, V* highest, V* total) const {
      for (int n = 0; n < vectors; ++n) {
        constexpr C nothing = -std::numeric_limits<C>::infinity();
        V top = highest[n];
        for (std::int64_t j = 0; j < count; ++j) {
          const V s = simd::load(scores + j * width + n * step);
          top = s > top ? s : top;
        }
        const V base = top == nothing ? V{} : top;  // no key yet: any finite base will do
        const V shrink = simd::exp_nonpositive(highest[n] - base);
        V sum = total[n] * shrink;
        for (std::int64_t j = 0; j < count; ++j) {
          C* at = scores + j * width + n * step;
          const V weight = simd::exp_nonpositive(simd::load(at) - base);
          sum += weight;
          simd::store(at, weight);
        }
        for (std::int64_t d = 0; d < p.value_size; ++d) {
          C* at = result + d * width + n * step;
          simd::store<C>(at, simd::load(at) * shrink);
        }
        highest[n] = top, total[n] = sum;
      }
    }

    void drop(const Place& at) const {
      dropout_factors(p, philox, at, factors);
      for (std::int64_t i = 0; i < at.keys * width; ++i) scores[i] *= factors[i];
    }

    void finish(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count,
                const V* highest, const V* total) const {
      C logsumexp[width];
      for (int n = 0; n < vectors; ++n) {
        const V inverse = total[n] == C(0) ? V{} : C(1) / total[n];
        for (std::int64_t d = 0; d < p.value_size; ++d) {
          C* at = result + d * width + n * step;
          simd::store<C>(at, simd::load(at) * inverse);
        }
        for (int i = 0; i < step; ++i)
          logsumexp[n * step + i] = total[n][i] == C(0) ? -std::numeric_limits<C>::infinity()
                                                        : highest[n][i] + vm::log(total[n][i]);
      }
      const std::int64_t columns = simd::padded<C>(p.value_size);
      C* rows = products.rows();
      simd::transpose(result, columns, width, rows);
      for (std::int64_t i = 0; i < count; ++i)
        narrow_row(
            rows + i * columns,
            args.out<T>(Attention::o) + ((b * p.queries + first + i) * p.heads + h) * p.value_size,
            p.value_size);
      std::copy_n(logsumexp, count,
                  args.out<C>(Attention::logsumexp) + (b * p.heads + h) * p.queries + first);
    }
  };

  Problem p_;
  int workers_;
  ScratchLayout scratch_;
  typename Products::Scratch products_;
  Bytes scores_, result_, factors_;
};

template <class T, class Products>
Kernel forward_kernel(const Problem& problem) {
  const Forward<T, Products> forward(problem, threads());
  return {forward, forward.workspace()};
}

}  // namespace

Kernel bind_attention_cpu(const KernelRequest& request, const AttentionAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Problem problem(request, a, 3);
    if constexpr (std::is_same_v<T, BFloat16>)
      if (PanelProducts::available()) return forward_kernel<T, PanelProducts>(problem);
    return forward_kernel<T, VectorProducts<T>>(problem);
  });
}

}  // namespace ebb
