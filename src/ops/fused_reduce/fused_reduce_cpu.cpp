#include "ops/fused_reduce/fused_reduce.h"
#include "ops/pointwise/tile_program.h"
#include "ops/reduce/fold_cpu.h"
#include "ops/workspace_areas.h"

namespace ebb {
namespace {

constexpr std::int64_t tile = TileProgram::tile;

// A source of evaluated elements for fold::Runner. Evaluates whole tiles if the reduction's
// requests are consecutive, even if they are short.
template <class T>
class Evaluated {
 public:
  // Pieces are multiples of a granule. Below `in_order`, each request follows the previous one.
  Evaluated(const TileProgram& program, const KernelArgs& args, int worker, std::int64_t granule,
            std::int64_t in_order)
      : elements_(program.elements),
        granule_(granule),
        in_order_(in_order),
        worker_(program, args, worker) {}

  template <class Fold>
  void visit(std::int64_t at, std::int64_t count, const Fold& fold) {
    for (std::int64_t piece; count > 0; at += piece, count -= piece) {
      piece = at < begin_ ? 0 : usable(at, count);
      if (piece <= 0) {
        evaluate(at, std::min(tile, std::max(count, in_order_ - at)));
        piece = usable(at, count);
      }
      fold(values_ + (at - begin_), std::int64_t{1}, piece);
    }
  }

 private:
  // The evaluated part of a request; not positive if it is less than a granule.
  std::int64_t usable(std::int64_t at, std::int64_t count) const {
    const std::int64_t there = end_ - at;
    return there >= count ? count : there / granule_ * granule_;
  }

  void evaluate(std::int64_t at, std::int64_t count) {
    // Whole vectors: what is left over would be computed one by one.
    const std::int64_t whole = (count + 63) / 64 * 64;
    values_ = static_cast<const T*>(worker_.evaluate(at, std::min({whole, tile, elements_ - at})));
    begin_ = at, end_ = at + count;
  }

  std::int64_t elements_, granule_, in_order_;
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
    TileProgram program(request, a.program, TileProgram::Result::kept);
    const fold::Geometry g(unfused, a.reduce.axes, program.workers);
    WorkspaceAreas areas;
    areas.add(program.workspace());
    const Bytes partial = areas.add(Runner::partial_bytes(g));
    return Kernel{[g, program = std::move(program), partial](const KernelArgs& args) {
                    Runner::run_all(g, program.workers, args.out<typename Runner::Result>(),
                                    args.scratch<typename Runner::Wide>(partial),
                                    [&](int worker, std::int64_t, std::int64_t last) {
                                      // Bands of a row follow one another only if there is one of
                                      // them.
                                      const bool in_order = g.in_order() && g.bands() == 1;
                                      return Evaluated<Compute<S>>(
                                          program, args, worker,
                                          g.inner_reduced ? Runner::lanes : 1,
                                          in_order ? g.first_element(last) : 0);
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
