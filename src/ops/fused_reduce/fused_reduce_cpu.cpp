#include "ops/fused_reduce/fused_reduce.h"
#include "ops/pointwise/tile_program.h"
#include "ops/reduce/fold_cpu.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

constexpr std::int64_t tile = TileProgram::tile;
static_assert(fold::most_in_band <= tile);

// Elements as a program computes them, for fold::Runner: the reduction's requests, in tiles that
// hold several of them where those follow one another.
template <class T>
class Evaluated {
 public:
  // Below `in_order`, what is asked for next lies behind what was asked for last.
  Evaluated(const TileProgram& program, const KernelArgs& args, int worker, std::int64_t in_order)
      : elements_(program.elements), in_order_(in_order), worker_(program, args, worker) {}

  template <class Fold>
  void visit(std::int64_t at, std::int64_t count, const Fold& fold) {
    // As many such requests as fill a tile; a longer one is no multiple of what comes next.
    const std::int64_t ahead = count <= tile ? std::min(tile / count * count, in_order_ - at) : 0;
    for (std::int64_t piece; count > 0; at += piece, count -= piece) {
      piece = std::min(count, tile);
      if (at < begin_ || at + piece > end_) evaluate(at, std::max(piece, ahead));
      fold(values_ + (at - begin_), std::int64_t{1}, piece);
    }
  }

 private:
  void evaluate(std::int64_t at, std::int64_t count) {
    // Whole vectors: what is left over would be computed one by one.
    const std::int64_t whole = (count + 63) / 64 * 64;
    values_ = static_cast<const T*>(worker_.evaluate(at, std::min({whole, tile, elements_ - at})));
    begin_ = at, end_ = at + count;
  }

  std::int64_t elements_, in_order_;
  TileWorker worker_;
  const T* values_ = nullptr;  // of elements [begin_, end_)
  std::int64_t begin_ = 0, end_ = 0;
};

template <template <class> class Reduction>
Kernel bind(const KernelRequest& request, const FusedReduceAttributes& a) {
  const Arg unfused = a.unfused();
  return dispatch_numeric(request, unfused.dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using Runner = fold::Runner<S, Reduction>;
    static_assert(tile % Runner::lanes == 0);
    fold::Geometry g(unfused, a.reduce.axes);
    // As wide as a tile, and evenly.
    const std::int64_t bands = std::max<std::int64_t>(1, (g.inner + tile - 1) / tile);
    g.together = std::max<std::int64_t>(1, (g.inner + bands - 1) / bands);
    TileProgram program(request, a.program, TileProgram::Result::kept);
    WorkspaceAreas areas;
    areas.add(program.workspace());
    const Bytes partial = areas.add(Runner::partial_bytes(g));
    return Kernel{[g, program = std::move(program), partial](const KernelArgs& args) {
                    Runner::run_all(
                        g, program.workers, args.out<typename Runner::Result>(),
                        args.scratch<typename Runner::Wide>(partial),
                        [&](int worker, std::int64_t, std::int64_t last) {
                          const std::int64_t in_order = g.in_order() ? g.first_element(last) : 0;
                          return Evaluated<typename Runner::T>(program, args, worker, in_order);
                        });
                  },
                  areas.total()};
  });
}

}  // namespace

Kernel bind_fused_reduce(const KernelRequest& request, const FusedReduceAttributes& a) {
  switch (a.kind) {
    case ReduceKind::sum:
      return bind<fold::Sum>(request, a);
    case ReduceKind::sum_squares:
      return bind<fold::SumSquares>(request, a);
    case ReduceKind::max:
      return bind<fold::Max>(request, a);
    case ReduceKind::min:
      break;
  }
  return bind<fold::Min>(request, a);
}

}  // namespace ebb
