// The logits are made in tiles of some rows × `block` classes, in the type of x, which become their
// gradient where they lie. The edges of a tile are chosen for the products: of the three that a
// tile takes part in, each result fills the multiprocessors about once.
//
// Forward walks the blocks of each tile's rows, and keeps the largest logit and the sum of
// exponentials of each row so far. Backward walks blocks in its outer loop. Products of half types
// are summed in float: a block's gradient over all rows (block × D), and the gradient of x over all
// blocks (N × D), each rounded once. float32 and float64 are summed in the outputs themselves.
//
// Products of half types are slow where the number of classes is not one of whole packs, as 50257:
// then the last block of the weight is copied and padded with zeros.
#include <algorithm>

#include "ops/cross_entropy/rows.cuh"
#include "ops/linear_cross_entropy/both_walks.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/gemm_cuda.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

using namespace cuda;

// Results of a product that occupy the multiprocessors of an H200 once, in tiles of 128 × 256.
constexpr std::int64_t one_wave = 132 * 128 * 256;

struct Problem {
  std::int64_t rows, features, classes;
  std::int64_t height, block;  // rows and classes of a tile
  std::int64_t lead;           // elements from one of its rows to the next: whole packs
  bool pads = false;           // the last block
  CrossEntropyAttributes loss;
  DType dtype, index;
  Device device;
  bool tf32;
  std::int64_t alignment = 16;  // bytes, of the inputs

  Problem(const KernelRequest& request, const LinearCrossEntropyAttributes& a)
      : rows(request.in(0).shape()[0]),
        features(request.in(0).shape()[1]),
        classes(request.in(1).shape()[0]),
        loss(a.loss),
        dtype(request.in(0).dtype()),
        index(index_dtype(request, 2)),
        device(request.device),
        tf32(request.tf32 && dtype == f32) {
    for (int i : {0, 1})
      if (const std::int64_t bytes = request.in(i).offset * size_of(dtype).count; bytes != 0)
        alignment = std::min(alignment, bytes & -bytes);
    const std::int64_t edge = std::clamp<std::int64_t>(one_wave / features, 1024, 5632);
    block = even_part(classes, edge);
    // A chunk of rows, with all classes, has as many logits as a tile may have.
    const std::int64_t most =
        a.chunk == 0 ? edge : std::max<std::int64_t>(1, a.chunk * classes / block);
    height = even_part(std::max<std::int64_t>(rows, 1), most);
    lead = ceil_div(block, 8) * 8;
    pads = size_of(dtype).count == 2 && classes % 8 != 0;
  }
  // The size of the fewest parts, about equal, of which none is larger than `most`.
  static std::int64_t even_part(std::int64_t count, std::int64_t most) {
    const std::int64_t part = ceil_div(count, ceil_div(count, most));
    return std::min(count, most < 64 ? part : std::min(most, ceil_div(part, 64) * 64));
  }

  std::int64_t tiles() const { return ceil_div(rows, height); }
  std::int64_t blocks() const { return ceil_div(classes, block); }
  std::int64_t height_of(std::int64_t tile) const { return std::min(height, rows - tile * height); }
  std::int64_t width_of(std::int64_t b) const { return std::min(block, classes - b * block); }
  bool padded(std::int64_t b) const { return pads && b == blocks() - 1; }
  // With padding.
  std::int64_t whole_width(std::int64_t b) const {
    return padded(b) ? ceil_div(width_of(b), 8) * 8 : width_of(b);
  }
};

// The weight by blocks, of which the last may be a padded copy in the workspace.
template <class S>
class WeightBlocks {
 public:
  WeightBlocks(const Problem& p, const KernelArgs& args, Bytes copy_at)
      : p_(p), weight_(args.in<S>(1)), copy_(args.scratch<S>(copy_at)) {
    if (!p.pads) return;
    const std::int64_t b = p.blocks() - 1;
    const auto bytes = [&](std::int64_t width) {
      return static_cast<std::size_t>(width * p.features) * sizeof(S);
    };
    EBB_CUDA_CHECK(cudaMemcpyAsync(copy_, weight_ + b * p.block * p.features, bytes(p.width_of(b)),
                                   cudaMemcpyDeviceToDevice, stream_of(args)));
    EBB_CUDA_CHECK(cudaMemsetAsync(copy_ + p.width_of(b) * p.features, 0,
                                   bytes(p.whole_width(b) - p.width_of(b)), stream_of(args)));
  }
  static Bytes add_area(const Problem& p, WorkspaceAreas& areas) {
    return areas.add<S>(p.pads ? p.whole_width(p.blocks() - 1) * p.features : 0);
  }
  const S* operator[](std::int64_t b) const {
    return p_.padded(b) ? copy_ : weight_ + b * p_.block * p_.features;
  }

 private:
  const Problem& p_;
  const S* weight_;
  S* copy_;
};

// A product for each combination of a whole or last tile, a whole or last block, and overwriting or
// adding.
class GemmTable {
 public:
  template <class Spec>  // gives a GemmSpec for (height, width)
  GemmTable(const Problem& p, bool adds, const Spec& spec) : p_(p) {
    for (const std::int64_t tile : {std::int64_t{0}, p.tiles() - 1})
      for (const std::int64_t b : {std::int64_t{0}, p.blocks() - 1})
        for (const bool add : {false, true}) {
          if (add && !adds) {
            gemms_.push_back(gemms_.back());
            continue;
          }
          GemmSpec s = spec(p.height_of(tile), p.whole_width(b));
          s.accumulate = add;
          s.tf32 = p.tf32;
          gemms_.emplace_back(p.device, s);
          workspace_ = std::max(workspace_, gemms_.back().workspace());
        }
  }
  Bytes workspace() const { return workspace_; }
  const Gemm& at(std::int64_t tile, std::int64_t b, bool add) const {
    const std::size_t last_tile = tile == p_.tiles() - 1, last_block = b == p_.blocks() - 1;
    return gemms_[4 * last_tile + 2 * last_block + add];
  }

 private:
  Problem p_;
  std::vector<Gemm> gemms_;
  Bytes workspace_;
};

// Rows of x and of the weight begin at multiples of this many bytes, or of more.
std::int64_t row_alignment(const Problem& p) {
  const std::int64_t bytes = p.features * size_of(p.dtype).count;
  return std::min<std::int64_t>(p.alignment, bytes & -bytes);
}

GemmTable logit_products(const Problem& p) {
  return GemmTable(p, false, [&](std::int64_t height, std::int64_t width) {
    return GemmSpec{.a = MatrixLayout::plain(height, p.features),
                    .b = MatrixLayout::swapped(p.features, width),
                    .dtype = p.dtype,
                    .out = p.dtype,
                    .out_lead = p.lead,
                    .align_a = row_alignment(p),
                    .align_b = row_alignment(p)};
  });
}

// --- Forward

template <class T>
struct RowState {
  LogitSums<T> sums;
  T at_target;
};

template <class S>
struct FoldTile {
  using T = Compute<S>;
  const S* logits;
  std::int64_t lead, first_row, first_class, width, classes;
  bool first, last;  // block of the rows
  Indices targets;
  RowState<T>* states;  // of the tile's rows
  T *losses, *logsumexps;
  CrossEntropyAttributes a;
  FaultSlot fault;

  template <class, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    const S* x = logits + r * lead;
    const LogitSums<T> part(walk, walk.open(x), a.label_smoothing != 0.0, width);
    if (walk.lane != 0) return;
    RowState<T> state = first ? RowState<T>{} : states[r];
    state.sums = first ? part : state.sums.joined(part);
    const std::int64_t row = first_row + r, target = targets[row];
    if (target >= first_class && target < first_class + width)
      state.at_target = widen(x[target - first_class]);
    states[r] = state;
    if (!last) return;
    logsumexps[row] = state.sums.logsumexp();
    const bool counts = row_counts(row, target, classes, a.ignore_index, fault);
    losses[row] = counts ? state.sums.loss(state.at_target, a.label_smoothing, classes) : T(0);
  }
};

template <class S>
struct Forward {
  using T = Compute<S>;
  Problem p;
  GemmTable products;
  WorkspaceAreas areas;
  Bytes logits_at, states_at, copy_at, gemm_at;

  explicit Forward(const Problem& problem) : p(problem), products(logit_products(p)) {
    logits_at = areas.add<S>(p.height * p.lead);
    copy_at = WeightBlocks<S>::add_area(p, areas);
    states_at = areas.add<RowState<T>>(p.height);
    gemm_at = areas.add(products.workspace());
  }

  void operator()(const KernelArgs& args) const {
    S* logits = args.scratch<S>(logits_at);
    const WeightBlocks<S> weight(p, args, copy_at);
    for (std::int64_t tile = 0; tile < p.tiles(); ++tile)
      for (std::int64_t b = 0; b < p.blocks(); ++b) {
        const std::int64_t row = tile * p.height, v = b * p.block;
        products.at(tile, b, false)
            .run(args, args.in<S>(0) + row * p.features, weight[b], logits,
                 args.scratch<std::byte>(gemm_at));
        const FoldTile<S> fold{logits,
                               p.lead,
                               row,
                               v,
                               p.width_of(b),
                               p.classes,
                               b == 0,
                               b == p.blocks() - 1,
                               Indices(args.inputs[2], p.index),
                               args.scratch<RowState<T>>(states_at),
                               args.out<T>(0),
                               args.out<T>(1),
                               p.loss,
                               FaultSlot(args)};
        launch_rows<S>(args, "linear_cross_entropy", fold,
                       RowShape({p.height_of(tile), p.whole_width(b)}), aligned_for_packs(logits));
      }
  }
};

// --- Backward

// Logits of a tile become their gradients, in place; padding becomes zero.
template <class S>
struct DifferentiateTile {
  using T = Compute<S>;
  S* logits;
  std::int64_t lead, first_row, first_class, width, classes;
  Indices targets;
  const T *logsumexps, *grads;
  CrossEntropyAttributes a;
  FaultSlot fault;

  template <class, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    const std::int64_t row = first_row + r, target = targets[row];
    const LogitGradient<T> gradient(
        row_counts(row, target, classes, a.ignore_index, fault, walk.lane == 0), target,
        logsumexps[row], grads[row], a.label_smoothing, classes);
    walk.slots([&](int, std::int64_t column) {
      T v[Walk::width];
      S* at = logits + r * lead + column;
      walk.load(at, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k)
        v[k] = column + k < width ? gradient(v[k], first_class + column + k) : T(0);
      walk.store(at, v);
    });
  }
};

template <class S>
__global__ void narrow_kernel(const Compute<S>* from, S* to, std::int64_t count) {
  for_items(count, [&](std::int64_t i) { to[i] = narrow<S>(from[i]); });
}

template <class S>
void narrow_all(const KernelArgs& args, const Compute<S>* from, S* to, std::int64_t count) {
  launch({args, "linear_cross_entropy_grad", item_grid(count), dim3(item_threads)},
         narrow_kernel<S>, from, to, count);
}

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

  Backward(const Problem& problem, const LinearCrossEntropyGradAttributes& a)
      : p(problem),
        x_needed(a.x),
        weight_needed(a.weight),
        wide_x(half && a.x && p.blocks() > 1),
        wide_weight(half && a.weight && (p.tiles() > 1 || p.pads)),
        logits(logit_products(p)),
        to_x(p, p.blocks() > 1,
             [&](std::int64_t height, std::int64_t width) {
               return GemmSpec{.a = {height, width, p.lead, 1},
                               .b = MatrixLayout::plain(width, p.features),
                               .dtype = p.dtype,
                               .out = wide_x ? f32 : p.dtype,
                               .out_lead = p.features,
                               .align_b = row_alignment(p),
                               .align_out = row_alignment(p)};
             }),
        to_weight(p, p.tiles() > 1, [&](std::int64_t height, std::int64_t width) {
          return GemmSpec{.a = {width, height, 1, p.lead},
                          .b = MatrixLayout::plain(height, p.features),
                          .dtype = p.dtype,
                          .out = wide_weight ? f32 : p.dtype,
                          .out_lead = p.features,
                          .align_b = row_alignment(p),
                          .align_out = row_alignment(p)};
        }) {
    tile_at = areas.add<S>(p.height * p.lead);
    copy_at = WeightBlocks<S>::add_area(p, areas);
    dx_at = areas.add<T>(wide_x ? p.rows * p.features : 0);
    dweight_at = areas.add<T>(wide_weight ? p.lead * p.features : 0);
    gemm_at = areas.add(std::max({logits.workspace(), to_x.workspace(), to_weight.workspace()}));
  }

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
    for (std::int64_t b = 0; b < p.blocks(); ++b) {
      S* dweight_block = weight_needed ? dweight_out + b * p.block * p.features : nullptr;
      for (std::int64_t tile = 0; tile < p.tiles(); ++tile) {
        const std::int64_t row = tile * p.height * p.features;
        const S* x = args.in<S>(0) + row;
        logits.at(tile, b, false).run(args, x, weight[b], gradient, scratch);
        differentiate(args, tile, b);
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

  // Logits in the workspace become their gradient.
  void differentiate(const KernelArgs& args, std::int64_t tile, std::int64_t b) const {
    S* at = args.scratch<S>(tile_at);
    const DifferentiateTile<S> turn{at,
                                    p.lead,
                                    tile * p.height,
                                    b * p.block,
                                    p.width_of(b),
                                    p.classes,
                                    Indices(args.inputs[2], p.index),
                                    args.in<T>(3),
                                    args.in<T>(4),
                                    p.loss,
                                    FaultSlot(args)};
    launch_rows<S>(args, "linear_cross_entropy_grad", turn,
                   RowShape({p.height_of(tile), p.whole_width(b)}), aligned_for_packs(at));
  }
};

template <template <class> class Run, class... A>
Kernel bind(const KernelRequest& request, const A&... a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Run<S> run(a...);
    return Kernel{run, run.areas.total()};
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

// One walk over all classes of a chunk of rows would save a product, but sum the gradient of the
// whole weight in float and need wide chunks: several times the workspace for a tenth of the time.
Kernel bind_linear_cross_entropy_joint_cuda(const KernelRequest& request,
                                            const LinearCrossEntropyGradAttributes& a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Problem p(request, a.forward);
    const BothWalks<Forward<S>, Backward<S>, Compute<S>> walks(Forward<S>(p), Backward<S>(p, a),
                                                               p.rows);
    return Kernel{walks, walks.areas.total()};
  });
}

}  // namespace ebb
