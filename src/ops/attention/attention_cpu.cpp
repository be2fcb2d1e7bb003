// Forward on the CPU: a worker takes a block of queries of one head, walks over the keys in tiles
// and keeps a running maximum and sum (Milakov and Gimelshein, 2018; Dao et al., 2022).
#include "core/parallel.h"
#include "core/vector_math.h"
#include "ops/attention/operands.h"
#include "ops/attention/tiles.h"

namespace ebb {
namespace {

using namespace attention;
using simd::Order, simd::Store;

template <class T>
class Forward {
  using C = Compute<T>;
  using V = simd::Vector<C>;
  static constexpr int width = lanes<C>, vectors = 2, step = simd::Simd<C>::width;

 public:
  Forward(const Problem& problem, int workers) : p_(problem), workers_(workers) {
    const std::int64_t size = simd::padded<C>(p_.size), value = simd::padded<C>(p_.value_size);
    rows_ = scratch_.add<C>(width * std::max(size, value));
    queries_ = scratch_.add<C>(size * width);
    scores_ = scratch_.add<C>(tile_keys * width);
    result_ = scratch_.add<C>(value * width);
    if (!std::is_same_v<T, C>)
      keys_ = scratch_.add<C>(tile_keys * std::max(p_.size, p_.value_size));
    if (p_.dropout > 0.0) factors_ = scratch_.add<C>(tile_keys * width);
  }
  Bytes workspace() const { return workers_ * scratch_.size(); }

  void operator()(const KernelArgs& args) const {
    const std::int64_t blocks = (p_.queries + width - 1) / width;
    parallel_for_workers(p_.batches * p_.heads * blocks, 1, workers_,
                         [&](int worker, std::int64_t begin, std::int64_t end) {
                           const Worker w(*this, args, worker);
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
    C *rows, *queries, *scores, *result, *keys, *factors;
    const std::byte* mask;

    Worker(const Forward& f, const KernelArgs& a, int worker)
        : p(f.p_), args(a), philox(a.random, f.p_.key) {
      const auto area = [&](Bytes offset) {
        return args.scratch<C>(worker * f.scratch_.size() + offset);
      };
      rows = area(f.rows_), queries = area(f.queries_), scores = area(f.scores_);
      result = area(f.result_), keys = area(f.keys_), factors = area(f.factors_);
      mask = p.masked ? args.inputs[Attention::mask] : nullptr;
    }

    void block(std::int64_t b, std::int64_t h, std::int64_t first) const {
      const std::int64_t count = std::min<std::int64_t>(width, p.queries - first);
      load_rows(args.in<T>(Attention::q) + p.q.at(b, h, first), p.q.row, count, p.size,
                static_cast<C>(p.scale), rows);
      simd::transpose(rows, width, simd::padded<C>(p.size), queries);
      std::fill_n(result, simd::padded<C>(p.value_size) * width, C(0));

      V highest[vectors], total[vectors] = {};
      for (V& v : highest) v = simd::spread(-std::numeric_limits<C>::infinity());
      const std::int64_t visible = p.visible(first + count), kv_head = h / p.group();
      for (std::int64_t j = p.first_tile(mask, b, first, count); j < visible; j += tile_keys) {
        const Place at{b, h, first, count, j, std::min<std::int64_t>(tile_keys, visible - j)};
        simd::product<Order::rows>(load_keys(args.in<T>(Attention::k) + p.k.at(b, kv_head, j),
                                             p.k.row, at.keys, p.size, keys),
                                   at.keys, p.size, queries, width, scores, width, width,
                                   Store::overwrite);
        apply_masks<T>(p, at, mask, scores);
        weigh(at.keys, highest, total);
        if (p.dropout > 0.0) drop(at);
        simd::product<Order::columns>(load_keys(args.in<T>(Attention::v) + p.v.at(b, kv_head, j),
                                                p.v.row, at.keys, p.value_size, keys),
                                      p.value_size, at.keys, scores, width, result, width, width,
                                      Store::add);
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
  Bytes rows_, queries_, scores_, result_, keys_, factors_;
};

}  // namespace

Kernel bind_attention_cpu(const KernelRequest& request, const AttentionAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    const Forward<typename decltype(tag)::type> forward(Problem(request, a, 3), threads());
    return Kernel{forward, forward.workspace()};
  });
}

}  // namespace ebb
