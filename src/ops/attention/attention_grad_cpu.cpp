// Backward on the CPU: a worker takes one head of keys and values. For each block of queries that
// reads it, it walks over the keys in tiles, recomputes the weights from the saved logsumexp and
// adds to dk and dv; dq of the block is complete after the walk. All sums have a fixed order.
#include "core/parallel.h"
#include "ops/attention/operands.h"
#include "ops/attention/panel_products.h"
#include "ops/attention/vector_products.h"

namespace ebb {
namespace {

using namespace attention;

template <class T, class Products>
class Backward {
  using C = Compute<T>;
  using V = simd::Vector<C>;
  static constexpr int width = lanes<C>, vectors = 2, step = simd::Simd<C>::width;

 public:
  Backward(const KernelRequest& request, const AttentionGradAttributes& a, int workers)
      : p_(request, a.attention, 6),
        o_(request.in(AttentionGrad::o)),
        grad_(request.in(AttentionGrad::grad)),
        places_(gradient_places(request, a.packed)),
        workers_(workers),
        products_(p_, Direction::backward, scratch_) {
    const std::int64_t size = simd::padded<C>(p_.size), value = simd::padded<C>(p_.value_size);
    dq_ = scratch_.add<C>(size * width);
    weights_ = scratch_.add<C>(tile_keys * width);
    dscores_ = scratch_.add<C>(tile_keys * width);
    if (p_.dropout > 0.0) factors_ = scratch_.add<C>(tile_keys * width);
    // dk and dv are accumulated in place, unless their rows are not whole vectors or have a half
    // type: then one head of each is accumulated in scratch.
    direct_ = Products::exact && size == p_.size && value == p_.value_size;
    if (!direct_) {
      dk_ = scratch_.add<C>(p_.keys * size);
      dv_ = scratch_.add<C>(p_.keys * value);
    }
  }
  Bytes workspace() const { return workers_ * scratch_.size(); }

  void operator()(const KernelArgs& args) const {
    parallel_for_workers(p_.batches * p_.kv_heads, 1, workers_,
                         [&](int worker, std::int64_t begin, std::int64_t end) {
                           Worker w(*this, args, worker);
                           for (std::int64_t unit = begin; unit < end; ++unit)
                             w.head(unit / p_.kv_heads, unit % p_.kv_heads);
                         });
  }

 private:
  struct Worker {
    const Backward& f;
    const Problem& p;
    const KernelArgs& args;
    Philox philox;
    Products products;
    std::int64_t size, value_size;  // padded
    C *dq, *weights, *dscores, *factors;
    C *dk, *dv;
    std::int64_t dk_row, dv_row;  // elements from one row to the next
    const std::byte* mask;

    Worker(const Backward& backward, const KernelArgs& a, int worker)
        : f(backward),
          p(backward.p_),
          args(a),
          philox(a.random, backward.p_.key),
          products(p, f.products_, a.scratch<std::byte>(worker * f.scratch_.size())) {
      const auto area = [&](Bytes offset) {
        return args.scratch<C>(worker * f.scratch_.size() + offset);
      };
      size = simd::padded<C>(p.size), value_size = simd::padded<C>(p.value_size);
      dq = area(f.dq_), weights = area(f.weights_), dscores = area(f.dscores_);
      factors = area(f.factors_);
      dk = area(f.dk_), dv = area(f.dv_);
      dk_row = size, dv_row = value_size;
      mask = p.masked ? args.inputs[AttentionGrad::mask] : nullptr;
    }

    // The address of a token's row of a head in the gradient of q, k or v; a row has `length`
    // elements.
    T* place(std::size_t gradient, std::int64_t token, std::int64_t h, std::int64_t length) const {
      const GradientPlace& at = f.places_[gradient];
      return args.out<T>(at.output) + at.offset + token * at.row + h * length;
    }

    void head(std::int64_t b, std::int64_t kv_head) {
      T* const dk_out = place(1, b * p.keys, kv_head, p.size);
      T* const dv_out = place(2, b * p.keys, kv_head, p.value_size);
      const std::int64_t dk_out_row = f.places_[1].row, dv_out_row = f.places_[2].row;
      if constexpr (std::is_same_v<T, C>)
        if (f.direct_) dk = dk_out, dk_row = dk_out_row, dv = dv_out, dv_row = dv_out_row;
      for (std::int64_t j = 0; j < p.keys; ++j) {
        std::fill_n(dk + j * dk_row, size, C(0));
        std::fill_n(dv + j * dv_row, value_size, C(0));
      }
      for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h)
        for (std::int64_t first = 0; first < p.queries; first += width) block(b, h, kv_head, first);
      if (f.direct_) return;
      for (std::int64_t j = 0; j < p.keys; ++j) {
        if constexpr (!Products::scales_queries)
          for (std::int64_t d = 0; d < p.size; ++d) dk[j * size + d] *= static_cast<C>(p.scale);
        narrow_row(dk + j * size, dk_out + j * dk_out_row, p.size);
        narrow_row(dv + j * value_size, dv_out + j * dv_out_row, p.value_size);
      }
    }

    void block(std::int64_t b, std::int64_t h, std::int64_t kv_head, std::int64_t first) {
      const std::int64_t count = std::min<std::int64_t>(width, p.queries - first);
      C* const rows = products.rows();
      load_rows(args.in<T>(AttentionGrad::o) + f.o_.at(b, h, first), f.o_.row, count, p.value_size,
                C(1), rows);
      products.take_gradients(args.in<T>(AttentionGrad::grad) + f.grad_.at(b, h, first),
                              f.grad_.row, count);
      C logsumexp[width], delta[width];  // delta: Σ_j weight · its gradient = o · do
      const C* saved = args.in<C>(AttentionGrad::logsumexp) + (b * p.heads + h) * p.queries + first;
      for (int i = 0; i < width; ++i) {
        delta[i] = dot(rows + i * value_size, products.gradients() + i * value_size);
        // For a query without keys, or padding: e^(score - inf) gives the weight 0.
        const bool empty = i >= count || saved[i] == -std::numeric_limits<C>::infinity();
        logsumexp[i] = empty ? std::numeric_limits<C>::infinity() : saved[i];
      }
      products.take_queries(args.in<T>(AttentionGrad::q) + p.q.at(b, h, first), p.q.row, count);
      std::fill_n(dq, size * width, C(0));

      const std::int64_t visible = p.visible(first + count);
      for (std::int64_t j = p.first_tile(mask, b, first, count); j < visible; j += tile_keys)
        tile({b, h, first, count, j, std::min<std::int64_t>(tile_keys, visible - j)}, kv_head,
             logsumexp, delta);

      simd::transpose(dq, size, width, rows);
      T* const out = place(0, b * p.queries + first, h, p.size);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t d = 0; d < p.size; ++d) rows[i * size + d] *= static_cast<C>(p.scale);
        narrow_row(rows + i * size, out + i * f.places_[0].row, p.size);
      }
    }

    void tile(const Place& at, std::int64_t kv_head, const C* logsumexp, const C* delta) {
      products.scores(args.in<T>(AttentionGrad::k) + p.k.at(at.batch, kv_head, at.key), p.k.row,
                      at.keys, weights);
      apply_masks<T>(p, at, mask, weights);
      products.value_scores(args.in<T>(AttentionGrad::v) + p.v.at(at.batch, kv_head, at.key),
                            p.v.row, at.keys, dscores);
      if (p.dropout > 0.0) {
        dropout_factors(p, philox, at, factors);
        softmax_gradient<true>(at.keys, logsumexp, delta);
      } else {
        softmax_gradient<false>(at.keys, logsumexp, delta);
      }
      products.add_to_dv(at.keys, weights, dv + at.key * dv_row, dv_row);
      products.add_to_dk_dq(at.keys, dscores, dk + at.key * dk_row, dk_row, dq);
    }

    // Turns scores, and the gradients of the weights after dropout, into weights and gradients of
    // the scores, in place.
    template <bool dropping>
    void softmax_gradient(std::int64_t count, const C* logsumexp, const C* delta) const {
      for (int n = 0; n < vectors; ++n) {
        const V log_total = simd::load(logsumexp + n * step), mean = simd::load(delta + n * step);
        for (std::int64_t j = 0; j < count; ++j) {
          C *weight_at = weights + j * width + n * step, *d_at = dscores + j * width + n * step;
          V weight = simd::exp_nonpositive(simd::load(weight_at) - log_total), d = simd::load(d_at);
          if constexpr (dropping) {
            const V factor = simd::load(factors + j * width + n * step);
            simd::store<C>(d_at, weight * (d * factor - mean));
            weight *= factor;
          } else {
            simd::store<C>(d_at, weight * (d - mean));
          }
          simd::store(weight_at, weight);
        }
      }
    }

    C dot(const C* a, const C* b) const {
      V sum{};
      for (std::int64_t d = 0; d < value_size; d += step)
        sum += simd::load(a + d) * simd::load(b + d);
      C result = 0;
      for (int i = 0; i < step; ++i) result += sum[i];
      return result;
    }
  };

  Problem p_;
  Heads o_, grad_;
  std::array<GradientPlace, 3> places_;
  int workers_;
  bool direct_ = false;
  ScratchLayout scratch_;
  typename Products::Scratch products_;
  Bytes dq_, weights_, dscores_, factors_, dk_, dv_;
};

template <class T, class Products>
Kernel backward_kernel(const KernelRequest& request, const AttentionGradAttributes& a) {
  const Backward<T, Products> backward(request, a, threads());
  return {backward, backward.workspace()};
}

}  // namespace

Kernel bind_attention_grad_cpu(const KernelRequest& request, const AttentionGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, BFloat16>)
      if (PanelProducts::available()) return backward_kernel<T, PanelProducts>(request, a);
    return backward_kernel<T, VectorProducts<T>>(request, a);
  });
}

}  // namespace ebb
