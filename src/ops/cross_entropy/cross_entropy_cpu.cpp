#include "core/parallel.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/rows.h"

namespace ebb {
namespace {

struct Problem {
  std::int64_t rows, classes;
  CrossEntropyAttributes a;

  Problem(const Shape& logits, const CrossEntropyAttributes& attributes)
      : rows(logits[0]), classes(logits[1]), a(attributes) {}

  template <class Body>
  void for_rows(const Body& body) const {
    parallel_for(rows, std::max<std::int64_t>(1, 8192 / classes),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) body(row);
                 });
  }
};

template <class S, class I>
void run_forward(const Problem& p, const KernelArgs& args) {
  using T = Compute<S>;
  p.for_rows([&](std::int64_t row) {
    const S* x = args.in<S>(0) + row * p.classes;
    const std::int64_t target = args.in<I>(1)[row];
    const auto sums = row_sums(x, p.classes, p.a.label_smoothing != 0.0);
    args.out<T>(1)[row] = sums.logsumexp;
    args.out<T>(0)[row] = row_counts(row, target, p.classes, p.a.ignore_index, *args.fault)
                              ? row_loss(x, p.classes, target, p.a.label_smoothing, sums)
                              : T(0);
  });
}

template <class S, class I>
void run_backward(const Problem& p, const KernelArgs& args) {
  using T = Compute<S>;
  const TargetShares shares(p.a.label_smoothing, p.classes);
  p.for_rows([&](std::int64_t row) {
    const S* x = args.in<S>(0) + row * p.classes;
    S* out = args.out<S>() + row * p.classes;
    const std::int64_t target = args.in<I>(1)[row];
    if (!row_counts(row, target, p.classes, p.a.ignore_index, *args.fault)) {
      std::fill_n(out, p.classes, S(0));
      return;
    }
    const T lse = args.in<T>(2)[row], g = args.in<T>(3)[row];
    // p - T at the target, before the row is overwritten: in a half type, the difference of rounded
    // numbers would lose accuracy when p is near 1.
    const T at_target =
        (vm::exp(static_cast<T>(x[target]) - lse) - static_cast<T>(shares.target + shares.each)) *
        g;
    row_gradient(x, out, p.classes, lse, g, static_cast<T>(shares.each));
    out[target] = S(at_target);
  });
}

template <class Make>
Kernel bind(const KernelRequest& request, const Make& make) {
  return dispatch_index(request, request.in(1).dtype(), [&](auto index) {
    return dispatch_floating(request, request.in(0).dtype(),
                             [&](auto element) { return make(element, index); });
  });
}

}  // namespace

Kernel bind_cross_entropy_cpu(const KernelRequest& request, const CrossEntropyAttributes& a) {
  return bind(request, [&](auto element, auto index) {
    return Kernel{[p = Problem(request.in(0).shape(), a)](const KernelArgs& args) {
      run_forward<typename decltype(element)::type, typename decltype(index)::type>(p, args);
    }};
  });
}

Kernel bind_cross_entropy_grad_cpu(const KernelRequest& request, const CrossEntropyAttributes& a) {
  return bind(request, [&](auto element, auto index) {
    return Kernel{[p = Problem(request.in(0).shape(), a)](const KernelArgs& args) {
      run_backward<typename decltype(element)::type, typename decltype(index)::type>(p, args);
    }};
  });
}

}  // namespace ebb
