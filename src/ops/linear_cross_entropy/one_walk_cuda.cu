// Forward and backward of the loss in one walk: the logits of some rows, with all classes, are made
// once, and become their gradient where they lie. One product less than two walks, for a workspace
// that is several times as large: all logits of the rows, and the gradient of the whole weight in
// float, to which every tile of rows adds. Products of half types are summed in float and rounded
// once.
#include "ops/linear_cross_entropy/logit_rows.cuh"
#include "ops/linear_cross_entropy/logit_tiles.cuh"

namespace ebb {
namespace {

using namespace cuda;

// A row's loss, then its logits become their gradient; padding becomes zero. For rows that are too
// long for LossRows.
template <class S>
struct LossAndGradient {
  using T = Compute<S>;
  S* logits;
  std::int64_t lead, first_row, classes;
  Indices targets;
  const T* grads;
  T* losses;
  CrossEntropyAttributes a;
  FaultSlot fault;

  template <class, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    S* x = logits + r * lead;
    const std::int64_t row = first_row + r, target = targets[row];
    const bool counts = row_counts(row, target, classes, a.ignore_index, fault, walk.lane == 0);
    // Before any thread writes: all have to be here to sum.
    const T at_target = counts && walk.lane == 0 ? widen(x[target]) : T(0);
    const typename Walk::Row kept = walk.open(x);
    const LogitSums<T> sums(walk, kept, a.label_smoothing != 0.0, classes);
    if (walk.lane == 0)
      losses[row] = counts ? sums.loss(at_target, a.label_smoothing, classes) : T(0);
    const LogitGradient<T> gradient(counts, target, sums.logsumexp(), grads[row], a.label_smoothing,
                                    classes);
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width];
      kept.get(slot, column, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k)
        v[k] = column + k < classes ? gradient(v[k], column + k) : T(0);
      walk.store(x + column, v);
    });
  }
};

template <class S>
struct OneWalk {
  using T = Compute<S>;
  static constexpr bool half = !std::is_same_v<S, T>;
  Problem p;
  bool x_needed, weight_needed;
  bool wide_x, wide_weight;  // summed in float first
  GemmTable logits, to_x, to_weight;
  WorkspaceAreas areas;
  Bytes logits_at, copy_at, dx_at, dweight_at, gemm_at;

  OneWalk(const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem),
        x_needed(a.x),
        weight_needed(a.weight),
        wide_x(half && a.x && p.blocks() > 1),
        wide_weight(half && a.weight && p.tiles() > 1),
        logits(logit_products(p)),
        to_x(products_to_x(p, wide_x ? f32 : p.dtype)),
        to_weight(products_to_weight(p, wide_weight ? f32 : p.dtype)) {
    logits_at = areas.add<S>(p.height * p.lead);
    copy_at = WeightBlocks<S>::add_area(p, areas);
    dx_at = areas.add<T>(wide_x ? p.height * p.features : 0);
    dweight_at = areas.add<T>(wide_weight ? p.lead * p.features : 0);
    gemm_at = areas.add(std::max({logits.workspace(), to_x.workspace(), to_weight.workspace()}));
  }

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
        logits.at(tile, b, false).run(args, x, weight[b], tile_logits + b * p.block, scratch);
      differentiate(args, tile);
      for (std::int64_t b = 0; b < p.blocks(); ++b) {
        const S* gradient = tile_logits + b * p.block;
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
    const Indices targets(args.inputs[2], p.index);
    if (LossRows<S>::fit(p.lead)) {
      const LossRows<S> rows{at,
                             p.lead,
                             tile * p.height,
                             p.classes,
                             targets,
                             args.in<T>(3),
                             args.out<T>(0),
                             p.loss,
                             FaultSlot(args)};
      return launch_loss_rows(args, rows, p.height_of(tile));
    }
    const LossAndGradient<S> turn{
        at,     p.lead,         tile * p.height, p.classes, targets, args.in<T>(3), args.out<T>(0),
        p.loss, FaultSlot(args)};
    launch_rows<S>(args, "linear_cross_entropy_joint", turn, RowShape({p.height_of(tile), p.lead}),
                   aligned_for_packs(at));
  }
};

}  // namespace

Kernel bind_linear_cross_entropy_one_walk_cuda(const KernelRequest& request,
                                               const LinearCrossEntropyGradAttributes& a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const OneWalk<S> walk(Problem::in_rows(request, a.forward), a);
    return Kernel{walk, walk.areas.total()};
  });
}

}  // namespace ebb
