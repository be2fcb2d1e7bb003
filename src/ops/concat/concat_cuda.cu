// One kernel copies many parts: a thread finds the source of its part of the result in a table that
// is passed as a kernel argument.
#include "ops/concat/concat.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb {
namespace {

using namespace cuda;

constexpr int table_parts = 240;  // limited by 4 KiB of kernel arguments

struct Table {
  const std::byte* part[table_parts];
  std::int64_t begin[table_parts + 1];  // in a block of the result, in units; the last is the end
  int count;
  std::int64_t outer, stride;  // blocks, and units of a block of the result
};

// U is the unit that is moved at a time.
template <class U>
__global__ void copy_parts(const __grid_constant__ Table table, U* out) {
  const std::int64_t width = table.begin[table.count] - table.begin[0];
  for_items(table.outer * width, [&](std::int64_t item) {
    const std::int64_t row = quotient(item, width);
    const std::int64_t at = table.begin[0] + (item - row * width);
    int low = 0, high = table.count;  // begin[low] <= at < begin[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (table.begin[middle] <= at ? low : high) = middle;
    }
    const std::int64_t size = table.begin[low + 1] - table.begin[low];
    out[row * table.stride + at] =
        reinterpret_cast<const U*>(table.part[low])[row * size + at - table.begin[low]];
  });
}

template <class U>
void run(const KernelArgs& args, const ConcatBlocks& blocks) {
  constexpr std::int64_t unit = sizeof(U);
  std::int64_t at = 0;
  for (std::size_t first = 0; first < blocks.parts.size(); first += table_parts) {
    Table table{};
    table.count = static_cast<int>(std::min<std::size_t>(table_parts, blocks.parts.size() - first));
    table.outer = blocks.outer, table.stride = blocks.stride / unit;
    for (int i = 0; i < table.count; ++i) {
      table.part[i] = args.inputs[first + static_cast<std::size_t>(i)];
      table.begin[i] = at;
      at += blocks.parts[first + static_cast<std::size_t>(i)] / unit;
    }
    table.begin[table.count] = at;
    launch({args, "concat", item_grid(blocks.outer * (at - table.begin[0])), dim3(item_threads)},
           copy_parts<U>, table, args.out<U>());
  }
}

}  // namespace

Kernel bind_concat_cuda(const KernelRequest& request, const ConcatAttributes& a) {
  return {[blocks = ConcatBlocks(request, a)](const KernelArgs& args) {
    std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(args.outputs[0]);
    for (const std::byte* input : args.inputs) bits |= reinterpret_cast<std::uintptr_t>(input);
    for (std::int64_t part : blocks.parts) bits |= static_cast<std::uintptr_t>(part);
    if (bits % 16 == 0)
      run<uint4>(args, blocks);
    else if (bits % 4 == 0)
      run<std::uint32_t>(args, blocks);
    else if (bits % 2 == 0)
      run<std::uint16_t>(args, blocks);
    else
      run<std::uint8_t>(args, blocks);
  }};
}

}  // namespace ebb
