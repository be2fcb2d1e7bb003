// A small kernel makes the table of cosines and sines, in double until stored; one thread turns a
// pair, so that the result may be written over the input.
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
                    launch({args, "rotary", item_grid(p.count * p.pairs), dim3(item_threads)},
                           turn<T>, p, args.in<T>(0), args.out<T>(), cosines, sines);
                  },
                  2 * table};
  });
}

}  // namespace ebb
