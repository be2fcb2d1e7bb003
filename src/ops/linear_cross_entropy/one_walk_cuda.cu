// Forward and backward of the loss in one walk: the logits of a tile's rows, with all classes, are
// computed once and overwritten by their gradient. This saves one product compared with two walks,
// but needs a workspace several times as large: all logits of the rows, block after block, and a
// float accumulator for the gradient of the whole weight. Products and sums are the same as in two
// walks, so that both forms give the same bits.
#include "ops/linear_cross_entropy/logit_rows.cuh"

namespace ebb {
namespace {

using namespace cuda;

template <class S>
struct OneWalk {
  using T = Compute<S>;
  static constexpr bool half = !std::is_same_v<S, T>;
  Problem p;
  bool x_needed, weight_needed;
  bool wide_x, wide_weight;  // summed in float first
  bool whole_rows;           // a row and its sums fit into shared memory
  GemmTable logits, to_x, to_weight;
  WorkspaceAreas areas;
  Bytes logits_at, copy_at, sums_at, targets_at, logsumexps_at, dx_at, dweight_at, gemm_at;

  OneWalk(const Target& target, const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem),
        x_needed(a.x),
        weight_needed(a.weight),
        wide_x(half && a.x && p.blocks() > 1),
        wide_weight(half && a.weight && p.tiles() > 1),
        whole_rows(LossRows<S>::fit(p)),
        logits(logit_products(target, p)),
        to_x(products_to_x(target, p, wide_x ? f32 : p.dtype)),
        to_weight(products_to_weight(target, p, wide_weight ? f32 : p.dtype)) {
    logits_at = areas.add<S>(p.blocks() * p.height * p.lead);
    copy_at = WeightBlocks<S>::add_area(p, areas);
    if (!whole_rows) {
      sums_at = RowParts<S>::add_sums(p, areas);
      targets_at = areas.add<T>(p.height);
      logsumexps_at = areas.add<T>(p.rows);
    }
    dx_at = areas.add<T>(wide_x ? p.height * p.features : 0);
    dweight_at = areas.add<T>(wide_weight ? ceil_div(p.classes, 8) * 8 * p.features : 0);
    gemm_at = areas.add(std::max({logits.workspace(), to_x.workspace(), to_weight.workspace()}));
  }

  double library_ms() const {
    return products_ms(logits, x_needed ? &to_x : nullptr, weight_needed ? &to_weight : nullptr);
  }
  // Logits are read, and overwritten by gradients.
  Cost beside() const { return logit_traffic(p, whole_rows ? 2 : 3); }

  void operator()(const KernelArgs& args) const {
    S* dx_out = x_needed ? args.out<S>(1) : nullptr;
    S* dweight_out = weight_needed ? args.out<S>(x_needed ? 2 : 1) : nullptr;
    if (p.rows == 0) {
      if (weight_needed)
        EBB_CUDA_CHECK(cudaMemsetAsync(dweight_out, 0,
                                       static_cast<std::size_t>(p.classes * p.features) * sizeof(S),
                                       stream_of(args)));
      return;
    }
    const WeightBlocks<S> weight(p, args, copy_at);
    std::byte* scratch = args.scratch<std::byte>(gemm_at);
    S* tile_logits = args.scratch<S>(logits_at);
    T* dx = args.scratch<T>(dx_at);
    T* dweight = args.scratch<T>(dweight_at);
    for (std::int64_t tile = 0; tile < p.tiles(); ++tile) {
      const std::int64_t row = tile * p.height * p.features;
      const S* x = args.in<S>(0) + row;
      for (std::int64_t b = 0; b < p.blocks(); ++b)
        logits.at(tile, b, false)
            .run(args, x, weight[b], tile_logits + b * p.height * p.lead, scratch);
      differentiate(args, tile);
      for (std::int64_t b = 0; b < p.blocks(); ++b) {
        const S* gradient = tile_logits + b * p.height * p.lead;
        const std::int64_t first = b * p.block * p.features;
        if (x_needed)
          to_x.at(tile, b, b > 0)
              .run(args, gradient, weight[b], wide_x ? static_cast<void*>(dx) : dx_out + row,
                   scratch);
        if (weight_needed)
          to_weight.at(tile, b, tile > 0)
              .run(args, gradient, x,
                   wide_weight ? static_cast<void*>(dweight + first) : dweight_out + first,
                   scratch);
      }
      if constexpr (half)
        if (wide_x) narrow_all(args, dx, dx_out + row, p.height_of(tile) * p.features);
    }
    if constexpr (half)
      if (wide_weight) narrow_all(args, dweight, dweight_out, p.classes * p.features);
  }

  void differentiate(const KernelArgs& args, std::int64_t tile) const {
    S* at = args.scratch<S>(logits_at);
    if (whole_rows) return launch_loss_rows(p, args, at, tile);
    const RowParts<S> parts{Segments::of<S>(p), args.scratch<SegmentSums<T>>(sums_at),
                            args.scratch<T>(targets_at)};
    T* logsumexps = args.scratch<T>(logsumexps_at);
    const TileRows<S> rows(p, args);
    for (std::int64_t b = 0; b < p.blocks(); ++b)
      rows.sum(tile, b, at + b * p.height * p.lead, parts);
    rows.finish(tile, parts, args.out<T>(0), logsumexps);
    for (std::int64_t b = 0; b < p.blocks(); ++b)
      rows.differentiate(tile, b, at + b * p.height * p.lead, logsumexps, args.in<T>(3));
  }
};

}  // namespace

Kernel bind_linear_cross_entropy_one_walk_cuda(const KernelRequest& request,
                                               const LinearCrossEntropyGradAttributes& a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const OneWalk<S> walk(request.target, Problem(request, a.forward), a);
    return Kernel{walk, walk.areas.total(), walk.library_ms(), walk.beside()};
  });
}

}  // namespace ebb
