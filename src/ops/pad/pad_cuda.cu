// One thread per element of the result checks whether an element of the input lies there.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/dispatch.h"
#include "ops/pad/pad.h"

namespace ebb {
namespace {

using namespace cuda;

struct Problem {
  int rank;
  std::int64_t elements;
  std::int64_t in[max_rank], out[max_rank], before[max_rank], step[max_rank];

  Problem(const Shape& from, const Shape& to, const PadAttributes& a)
      : rank(to.rank()), elements(to.elements()) {
    for (int i = 0; i < rank; ++i)
      in[i] = from[i], out[i] = to[i], before[i] = a.before[i], step[i] = a.step[i];
  }
};

template <class T>
__global__ void pad_kernel(Problem p, const T* from, T* to, T fill) {
  for_items(p.elements, [&](std::int64_t item) {
    std::int64_t rest = item, source = 0, scale = 1;
    bool inside = true;
    for (int i = p.rank - 1; i >= 0; --i) {
      const std::int64_t next = quotient(rest, p.out[i]), at = rest - next * p.out[i] - p.before[i];
      rest = next;
      const std::int64_t cell = at < 0 ? 0 : quotient(at, p.step[i]);
      inside = inside && at >= 0 && cell * p.step[i] == at && cell < p.in[i];
      source += cell * scale;
      scale *= p.in[i];
    }
    to[item] = inside ? from[source] : fill;
  });
}

}  // namespace

Kernel bind_pad_cuda(const KernelRequest& request, const PadAttributes& a) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T fill = fill_value<T>(request.out().dtype(), a.value);
    return Kernel{[p = Problem(request.in(0).shape(), request.out().shape(), a),
                   fill](const KernelArgs& args) {
      launch({args, "pad", item_grid(p.elements), dim3(item_threads)}, pad_kernel<T>, p,
             args.in<T>(0), args.out<T>(), fill);
    }};
  });
}

}  // namespace ebb
