#include <cmath>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/rotary/rotary.h"

namespace ebb {
namespace {

struct Problem {
  Shape lead;  // all axes but the last two
  Strides strides;
  std::int64_t rows, positions, pairs;
  RotaryAttributes attributes;

  Problem(const Arg& x, const RotaryAttributes& a) : strides(x.strides), attributes(a) {
    const int rank = x.shape().rank();
    for (int i = 0; i < rank - 2; ++i) lead.push_back(x.shape()[i]);
    positions = x.shape()[rank - 2], pairs = x.shape()[rank - 1] / 2;
    rows = lead.elements() * positions;
  }
  std::int64_t offset(std::int64_t row) const {
    std::int64_t result = row % positions * strides[lead.rank()], rest = row / positions;
    for (int i = lead.rank() - 1; i >= 0; --i) {
      result += rest % lead[i] * strides[i];
      rest /= lead[i];
    }
    return result;
  }
};

// cos and sin of every (position, pair), in double until stored. Each run of positions starts from
// the exact angle and continues by rotation, which costs far less than a cosine and loses only a
// few units in double's last place.
template <class C>
void fill_tables(const Problem& p, C* cosines, C* sines) {
  constexpr std::int64_t run = 32;
  parallel_for((p.positions + run - 1) / run, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < p.pairs; ++i) {
        const double speed = std::exp(
            static_cast<double>(i) * (-std::log(p.attributes.base) / static_cast<double>(p.pairs)));
        const double start = static_cast<double>(p.attributes.first_position + r * run) * speed;
        const double step_c = std::cos(speed), step_s = std::sin(speed);
        double c = std::cos(start), s = std::sin(start);
        for (std::int64_t t = r * run; t < std::min((r + 1) * run, p.positions); ++t) {
          cosines[t * p.pairs + i] = static_cast<C>(c);
          sines[t * p.pairs + i] = static_cast<C>(p.attributes.inverse ? -s : s);
          const double next = c * step_c - s * step_s;
          s = s * step_c + c * step_s;
          c = next;
        }
      }
  });
}

// A pair is read before either half is written, so `out` may be `x`.
template <class T>
void run(const Problem& p, const KernelArgs& args, Bytes table) {
  using C = Compute<T>;
  C *cosines = args.scratch<C>(), *sines = args.scratch<C>(table);
  fill_tables(p, cosines, sines);
  const std::int64_t pairs = p.pairs;
  parallel_for(p.rows, std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(pairs, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   const T* x = args.in<T>(0) + p.offset(row);
                   T* out = args.out<T>() + row * 2 * pairs;
                   const C *c = cosines + row % p.positions * pairs,
                           *s = sines + row % p.positions * pairs;
#pragma GCC ivdep  // out is x or apart from it
                   for (std::int64_t i = 0; i < pairs; ++i) {
                     const C a = static_cast<C>(x[i]), b = static_cast<C>(x[i + pairs]);
                     out[i] = static_cast<T>(a * c[i] - b * s[i]);
                     out[i + pairs] = static_cast<T>(b * c[i] + a * s[i]);
                   }
                 }
               });
}

}  // namespace

Kernel bind_rotary_cpu(const KernelRequest& request, const RotaryAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Problem problem(request.in(0), a);
    const Bytes table = problem.positions * problem.pairs * Bytes{sizeof(Compute<T>)};
    return Kernel{[=](const KernelArgs& args) { run<T>(problem, args, table); }, 2 * table};
  });
}

}  // namespace ebb
