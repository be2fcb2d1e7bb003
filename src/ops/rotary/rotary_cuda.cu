// A small kernel makes the table of cosines and sines, in double until stored. One thread rotates a
// pair, or as many neighbouring pairs as 16 bytes hold, and reads them before it writes, so the
// result may overwrite the input.
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/rotary/rotary.h"

namespace ebb {
namespace {

using namespace cuda;

struct Problem {
  AxisSteps rows;  // all axes but the last
  std::int64_t count, positions, pairs;
  RotaryAttributes attributes;

  Problem(const Arg& x, const RotaryAttributes& a) : attributes(a) {
    const int rank = x.shape().rank();
    Shape shape = x.shape();
    Strides strides = x.strides;
    shape.erase(rank - 1), strides.erase(rank - 1);
    rows = AxisSteps(shape, strides);
    positions = x.shape()[rank - 2], pairs = x.shape()[rank - 1] / 2;
    count = shape.elements();
  }

  // Whether every row begins at a multiple of `pack` elements and has that many pairs.
  bool has_packs(int pack) const {
    bool aligned = pairs % pack == 0;
    for (int axis = 0; axis < rows.rank; ++axis) aligned &= rows.stride[axis] % pack == 0;
    return aligned;
  }
};

template <class C>
__global__ void fill_table(std::int64_t positions, std::int64_t pairs, RotaryAttributes a,
                           C* cosines, C* sines) {
  for_items(positions * pairs, [&](std::int64_t item) {
    const std::int64_t t = quotient(item, pairs), i = item - t * pairs;
    const double speed =
        ::exp(static_cast<double>(i) * (-::log(a.base) / static_cast<double>(pairs)));
    double s, c;
    ::sincos(static_cast<double>(a.first_position + t) * speed, &s, &c);
    cosines[item] = static_cast<C>(c);
    sines[item] = static_cast<C>(a.inverse ? -s : s);
  });
}

template <class T>
__global__ void turn(Problem p, const T* x, T* out, const Compute<T>* cosines,
                     const Compute<T>* sines) {
  using C = Compute<T>;
  for_items(p.count * p.pairs, [&](std::int64_t item) {
    const std::int64_t row = quotient(item, p.pairs), i = item - row * p.pairs;
    const std::int64_t t = row - quotient(row, p.positions) * p.positions;
    const T* from = x + p.rows.offset(row) + i;
    T* to = out + row * 2 * p.pairs + i;
    const C a = widen(from[0]), b = widen(from[p.pairs]);
    const C c = cosines[t * p.pairs + i], s = sines[t * p.pairs + i];
    to[0] = narrow<T>(a * c - b * s);
    to[p.pairs] = narrow<T>(b * c + a * s);
  });
}

// The same with pack<T> neighbouring pairs per thread.
template <class T>
__global__ void turn_packs(Problem p, const T* x, T* out, const Compute<T>* cosines,
                           const Compute<T>* sines) {
  using C = Compute<T>;
  const std::int64_t packs = p.pairs / pack<T>;  // of a row
  for_items(p.count * packs, [&](std::int64_t item) {
    const std::int64_t row = quotient(item, packs), i = (item - row * packs) * pack<T>;
    const std::int64_t t = row - quotient(row, p.positions) * p.positions;
    const T* from = x + p.rows.offset(row) + i;
    T* to = out + row * 2 * p.pairs + i;
    C a[pack<T>], b[pack<T>], first[pack<T>], second[pack<T>];
    load_pack<T>(from, a), load_pack<T>(from + p.pairs, b);
#pragma unroll
    for (int k = 0; k < pack<T>; ++k) {
      const C c = cosines[t * p.pairs + i + k], s = sines[t * p.pairs + i + k];
      first[k] = a[k] * c - b[k] * s;
      second[k] = b[k] * c + a[k] * s;
    }
    store_pack<T>(to, first), store_pack<T>(to + p.pairs, second);
  });
}

}  // namespace

Kernel bind_rotary_cuda(const KernelRequest& request, const RotaryAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const Problem p(request.in(0), a);
    const Bytes table = p.positions * p.pairs * Bytes{sizeof(C)};
    return Kernel{[p, table](const KernelArgs& args) {
                    C *cosines = args.scratch<C>(), *sines = args.scratch<C>(table);
                    launch({args, "rotary", item_grid(p.positions * p.pairs), dim3(item_threads)},
                           fill_table<C>, p.positions, p.pairs, p.attributes, cosines, sines);
                    const T* x = args.in<T>(0);
                    T* out = args.out<T>();
                    const bool packs = p.has_packs(pack<T>) && aligned_for_packs(x, out);
                    const std::int64_t items = p.count * p.pairs / (packs ? pack<T> : 1);
                    launch({args, "rotary", item_grid(items), dim3(item_threads)},
                           packs ? turn_packs<T> : turn<T>, p, x, out, cosines, sines);
                  },
                  2 * table};
  });
}

}  // namespace ebb
