// Elementwise functions and fused programs of them on the CPU.
#include <algorithm>

#include "core/parallel.h"
#include "ops/pointwise/tile_program.h"

namespace ebb {

Kernel bind_pointwise(const KernelRequest& request, const FusedAttributes& fused) {
  constexpr std::int64_t tile = TileProgram::tile;
  TileProgram program(request, fused, TileProgram::Result::written);
  const Bytes workspace = program.workspace();
  return {.run =
              [program = std::move(program)](const KernelArgs& args) {
                parallel_for_workers(
                    (program.elements + tile - 1) / tile, TileProgram::grain / tile,
                    program.workers, [&](int worker, std::int64_t first, std::int64_t last) {
                      TileWorker(program, args, worker)
                          .write(first * tile, std::min(last * tile, program.elements));
                    });
              },
          .workspace = workspace};
}

}  // namespace ebb
