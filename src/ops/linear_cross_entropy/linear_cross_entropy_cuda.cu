// Two walks over the logits, which are computed in tiles of some rows × `block` classes, in the
// dtype of x, and are overwritten by their gradient.
//
// Forward walks the blocks of each tile's rows and sums their exponentials. Backward walks blocks
// in its outer loop. Products of half types are summed in float: a block's gradient over all rows
// (block × D), and the gradient of x over all blocks (N × D), each rounded once. float32 and
// float64 are summed in the outputs themselves. All sums have the same order as in
// one_walk_cuda.cu, so that both forms give the same bits.
#include "ops/linear_cross_entropy/both_walks.h"
#include "ops/linear_cross_entropy/logit_rows.cuh"

namespace ebb {
namespace {

using namespace cuda;

// --- Forward

template <class S>
struct Forward {
  using T = Compute<S>;
  Problem p;
  GemmTable products;
  WorkspaceAreas areas;
  Bytes logits_at, copy_at, sums_at, targets_at, gemm_at;

  Forward(const Target& target, const Problem& problem)
      : p(problem), products(logit_products(target, p)) {
    logits_at = areas.add<S>(p.height * p.lead);
    copy_at = WeightBlocks<S>::add_area(p, areas);
    sums_at = RowParts<S>::add_sums(p, areas);
    targets_at = areas.add<T>(p.height);
    gemm_at = areas.add(products.workspace());
  }

  double library_ms() const {
    return products.ms([](auto, auto) { return false; });
  }
  Cost beside() const { return logit_traffic(p, 1); }  // read

  void operator()(const KernelArgs& args) const {
    S* logits = args.scratch<S>(logits_at);
    const WeightBlocks<S> weight(p, args, copy_at);
    const RowParts<S> parts{Segments::of<S>(p), args.scratch<SegmentSums<T>>(sums_at),
                            args.scratch<T>(targets_at)};
    const TileRows<S> rows(p, args);
    for (std::int64_t tile = 0; tile < p.tiles(); ++tile) {
      for (std::int64_t b = 0; b < p.blocks(); ++b) {
        products.at(tile, b, false)
            .run(args, args.in<S>(0) + tile * p.height * p.features, weight[b], logits,
                 args.scratch<std::byte>(gemm_at));
        rows.sum(tile, b, logits, parts);
      }
      rows.finish(tile, parts, args.out<T>(0), args.out<T>(1));
    }
  }
};

// --- Backward

template <class S>
struct Backward {
  using T = Compute<S>;
  static constexpr bool half = !std::is_same_v<S, T>;
  Problem p;
  bool x_needed, weight_needed;
  bool wide_x, wide_weight;  // summed in float first
  GemmTable logits, to_x, to_weight;
  WorkspaceAreas areas;
  Bytes tile_at, copy_at, dx_at, dweight_at, gemm_at;

  Backward(const Target& target, const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem),
        x_needed(a.x),
        weight_needed(a.weight),
        wide_x(half && a.x && p.blocks() > 1),
        wide_weight(half && a.weight && p.tiles() > 1),
        logits(logit_products(target, p)),
        to_x(products_to_x(target, p, wide_x ? f32 : p.dtype)),
        to_weight(products_to_weight(target, p, wide_weight ? f32 : p.dtype)) {
    tile_at = areas.add<S>(p.height * p.lead);
    copy_at = WeightBlocks<S>::add_area(p, areas);
    dx_at = areas.add<T>(wide_x ? p.rows * p.features : 0);
    dweight_at = areas.add<T>(wide_weight ? p.lead * p.features : 0);
    gemm_at = areas.add(std::max({logits.workspace(), to_x.workspace(), to_weight.workspace()}));
  }

  double library_ms() const {
    return products_ms(logits, x_needed ? &to_x : nullptr, weight_needed ? &to_weight : nullptr);
  }
  Cost beside() const { return logit_traffic(p, 2); }  // read, and overwritten by gradients

  void operator()(const KernelArgs& args) const {
    S* dx_out = x_needed ? args.out<S>(0) : nullptr;
    S* dweight_out = weight_needed ? args.out<S>(x_needed ? 1 : 0) : nullptr;
    if (p.rows == 0) {
      if (weight_needed)
        EBB_CUDA_CHECK(cudaMemsetAsync(dweight_out, 0,
                                       static_cast<std::size_t>(p.classes * p.features) * sizeof(S),
                                       stream_of(args)));
      return;
    }
    T* dx = args.scratch<T>(dx_at);
    T* dweight = args.scratch<T>(dweight_at);
    const WeightBlocks<S> weight(p, args, copy_at);
    std::byte* scratch = args.scratch<std::byte>(gemm_at);
    S* gradient = args.scratch<S>(tile_at);
    const TileRows<S> rows(p, args);
    for (std::int64_t b = 0; b < p.blocks(); ++b) {
      S* dweight_block = weight_needed ? dweight_out + b * p.block * p.features : nullptr;
      for (std::int64_t tile = 0; tile < p.tiles(); ++tile) {
        const std::int64_t row = tile * p.height * p.features;
        const S* x = args.in<S>(0) + row;
        logits.at(tile, b, false).run(args, x, weight[b], gradient, scratch);
        rows.differentiate(tile, b, gradient, args.in<T>(3), args.in<T>(4));
        if (x_needed)
          to_x.at(tile, b, b > 0)
              .run(args, gradient, weight[b], wide_x ? static_cast<void*>(dx + row) : dx_out + row,
                   scratch);
        if (weight_needed)
          to_weight.at(tile, b, tile > 0)
              .run(args, gradient, x, wide_weight ? static_cast<void*>(dweight) : dweight_block,
                   scratch);
      }
      if constexpr (half)
        if (wide_weight) narrow_all(args, dweight, dweight_block, p.width_of(b) * p.features);
    }
    if constexpr (half)
      if (wide_x) narrow_all(args, dx, dx_out, p.rows * p.features);
  }
};

template <template <class> class Run, class... A>
Kernel bind(const KernelRequest& request, const A&... a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Run<S> run(request.target, a...);
    return Kernel{run, run.areas.total(), run.library_ms(), run.beside()};
  });
}

}  // namespace

Kernel bind_linear_cross_entropy_cuda(const KernelRequest& request,
                                      const LinearCrossEntropyAttributes& a) {
  return bind<Forward>(request, Problem(request, a));
}

Kernel bind_linear_cross_entropy_grad_cuda(const KernelRequest& request,
                                           const LinearCrossEntropyGradAttributes& a) {
  return bind<Backward>(request, Problem(request, a.forward), a);
}

Kernel bind_linear_cross_entropy_joint_cuda(const KernelRequest& request,
                                            const LinearCrossEntropyJointAttributes& joint) {
  const LinearCrossEntropyGradAttributes& a = joint.backward;
  if (joint.walks == 1) return bind_linear_cross_entropy_one_walk_cuda(request, a);
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Problem p = Problem(request, a.forward);
    const Forward<S> forward(request.target, p);
    const Backward<S> backward(request.target, p, a);
    const BothWalks<Forward<S>, Backward<S>, Compute<S>> walks(forward, backward, p.rows);
    const double forward_ms = forward.library_ms(), backward_ms = backward.library_ms();
    return Kernel{walks, walks.areas.total(),
                  forward_ms > 0.0 && backward_ms > 0.0 ? forward_ms + backward_ms : 0.0,
                  logit_traffic(p, 3)};
  });
}

}  // namespace ebb
