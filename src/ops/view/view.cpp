// Views: ops that only reinterpret a buffer. They have no kernels: the planner gives their outputs
// the input's buffer with other strides, after a copy where the strides cannot be expressed.
#include "ops/view/view.h"

#include <fmt/core.h>

#include <numeric>

#include "ebb/node.h"
#include "ebb/ops.h"

namespace ebb {
namespace {

struct ReshapeAttributes {
  Shape shape;
  bool operator==(const ReshapeAttributes&) const = default;
  void visit(auto&& field) { field("shape", shape); }
};

// The target shape with its -1 filled in.
Shape resolve(const Shape& from, Shape to) {
  for (int i = 0; i < to.rank(); ++i)
    if (to[i] == -1) {
      to[i] = 1;
      to[i] = from.elements() / std::max<std::int64_t>(to.elements(), 1);
    }
  return to;
}

std::vector<TensorType> infer_reshape(const Call& call, const ReshapeAttributes& a) {
  const Shape& shape = a.shape;
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < -1 || (shape[i] == -1 && unknown >= 0))
      call.fail_shape(fmt::format("a shape has no negative sizes and at most one -1, but {} came",
                                  to_string(shape)));
    if (shape[i] == -1)
      unknown = i;
    else
      known *= shape[i];
  }
  const std::int64_t elements = call.shape(0).elements();
  if (unknown >= 0 ? known == 0 || elements % known != 0 : known != elements)
    call.fail_shape(fmt::format("cannot reshape {} elements to {}", elements, to_string(a.shape)));
  return {{resolve(call.shape(0), shape), call.dtype(0)}};
}

// Walks both shapes from the back, passing over axes of size 1: axes that are joined must continue
// one another in memory.
std::optional<Layout> view_reshape(const TensorType& input, const Layout& layout, int,
                                   const ReshapeAttributes& a) {
  const Shape& from = input.shape;
  const Shape to = resolve(from, a.shape);
  if (from.elements() == 0 || is_contiguous(from, layout.strides))
    return Layout{contiguous_strides(to), layout.offset};
  Strides strides = IntList::filled(to.rank(), 1);
  int i = from.rank() - 1;
  std::int64_t left = 1;    // elements of the current input axis not yet covered by output axes
  std::int64_t stride = 0;  // between them
  for (int j = to.rank() - 1; j >= 0; --j) {
    if (to[j] == 1) continue;
    std::int64_t wanted = to[j];
    bool first = true;
    while (wanted > 1) {
      if (left == 1) {
        while (from[i] == 1) --i;
        if (!first && layout.strides[i] != stride) return std::nullopt;
        left = from[i];
        stride = layout.strides[i];
        --i;
      }
      if (first) strides[j] = stride;
      first = false;
      const std::int64_t taken = std::gcd(left, wanted);
      if (taken == 1 || (taken != left && taken != wanted)) return std::nullopt;
      left /= taken;
      wanted /= taken;
      stride *= taken;
    }
  }
  return Layout{strides, layout.offset};
}

std::vector<Tensor> reshape_gradient(const GradientCall& call, const ReshapeAttributes&) {
  return {reshape(call.grad(), call.input_type(0).shape)};
}

struct PermuteAttributes {
  Axes order;
  bool operator==(const PermuteAttributes&) const = default;
  void visit(auto&& field) { field("order", order); }
};

std::vector<TensorType> infer_permute(const Call& call, const PermuteAttributes& a) {
  const int rank = call.shape(0).rank();
  Shape shape;
  IndexSet seen;
  if (a.order.size() != rank)
    call.fail_value(fmt::format("the order must name each of {} axes once, but is {}", rank,
                                to_string(a.order)));
  for (std::int64_t axis : a.order) {
    if (axis < 0 || axis >= rank || seen.contains(static_cast<int>(axis)))
      call.fail_value(fmt::format("the order must name each of {} axes once, but is {}", rank,
                                  to_string(a.order)));
    seen.insert(static_cast<int>(axis));
    shape.push_back(call.shape(0)[static_cast<int>(axis)]);
  }
  return {{shape, call.dtype(0)}};
}

std::optional<Layout> view_permute(const TensorType&, const Layout& layout, int,
                                   const PermuteAttributes& a) {
  Layout result{{}, layout.offset};
  for (std::int64_t axis : a.order)
    result.strides.push_back(layout.strides[static_cast<int>(axis)]);
  return result;
}

std::vector<Tensor> permute_gradient(const GradientCall& call, const PermuteAttributes& a) {
  Axes inverse = IntList::filled(a.order.size(), 0);
  for (int i = 0; i < a.order.size(); ++i) inverse[static_cast<int>(a.order[i])] = i;
  return {permute(call.grad(), inverse)};
}

struct ExpandAttributes {
  Shape shape;
  bool operator==(const ExpandAttributes&) const = default;
  void visit(auto&& field) { field("shape", shape); }
};

std::vector<TensorType> infer_expand(const Call& call, const ExpandAttributes& a) {
  Shape joined;
  if (!broadcast(call.shape(0), a.shape, joined) || joined != a.shape)
    call.fail_shape(fmt::format("does not broadcast to {}", to_string(a.shape)));
  return {{a.shape, call.dtype(0)}};
}

std::optional<Layout> view_expand(const TensorType& input, const Layout& layout, int,
                                  const ExpandAttributes& a) {
  const int lead = a.shape.rank() - input.shape.rank();
  Layout result{IntList::filled(lead, 0), layout.offset};
  for (int i = 0; i < input.shape.rank(); ++i)
    result.strides.push_back(input.shape[i] == a.shape[lead + i] ? layout.strides[i] : 0);
  return result;
}

std::vector<Tensor> expand_gradient(const GradientCall& call, const ExpandAttributes&) {
  return {sum_to(call.grad(), call.input_type(0).shape)};
}

struct SliceAttributes {
  int axis = 0;
  std::int64_t begin = 0, end = 0, step = 1;
  bool operator==(const SliceAttributes&) const = default;
  void visit(auto&& field) {
    field("axis", axis);
    field("begin", begin);
    field("end", end);
    field("step", step);
  }
};

std::vector<TensorType> infer_slice(const Call& call, const SliceAttributes& a) {
  Shape shape = call.shape(0);
  const int axis = call.axis(a.axis, shape.rank());
  if (a.step < 1) call.fail_value(fmt::format("the step must be at least 1, but is {}", a.step));
  if (a.begin < 0 || a.end < a.begin || a.end > shape[axis])
    call.fail_value(fmt::format("[{}, {}) is not a range within axis {} of size {}", a.begin, a.end,
                                axis, shape[axis]));
  shape[axis] = (a.end - a.begin + a.step - 1) / a.step;
  return {{shape, call.dtype(0)}};
}

std::optional<Layout> view_slice(const TensorType&, const Layout& layout, int,
                                 const SliceAttributes& a) {
  Layout result = layout;
  result.offset += a.begin * layout.strides[a.axis];
  result.strides[a.axis] *= a.step;
  return result;
}

std::vector<Tensor> slice_gradient(const GradientCall& call, const SliceAttributes& a) {
  const Shape& shape = call.input_type(0).shape;
  IntList before = IntList::filled(shape.rank(), 0), after = before,
          step = IntList::filled(shape.rank(), 1);
  const std::int64_t taken = call.output_type(0).shape[a.axis];
  before[a.axis] = a.begin;
  step[a.axis] = a.step;
  after[a.axis] = shape[a.axis] - a.begin - (taken > 0 ? (taken - 1) * a.step + 1 : 0);
  return {pad_with_steps(call.grad(), before, after, step, 0.0)};
}

struct SplitAttributes {
  int axis = 0;
  std::vector<std::int64_t> sizes;
  bool operator==(const SplitAttributes&) const = default;
  void visit(auto&& field) {
    field("axis", axis);
    field("sizes", sizes);
  }
};

std::vector<TensorType> infer_split(const Call& call, const SplitAttributes& a) {
  const int axis = call.axis(a.axis, call.shape(0).rank());
  std::int64_t total = 0;
  std::vector<TensorType> types;
  for (std::int64_t size : a.sizes) {
    Shape shape = call.shape(0);
    shape[axis] = size;
    total += size;
    types.push_back({shape, call.dtype(0)});
    if (size < 0) call.fail_value(fmt::format("sizes must not be negative, but one is {}", size));
  }
  if (total != call.shape(0)[axis] || a.sizes.empty())
    call.fail_value(fmt::format("the sizes add up to {}, but axis {} has size {}", total, axis,
                                call.shape(0)[axis]));
  return types;
}

std::optional<Layout> view_split(const TensorType&, const Layout& layout, int output,
                                 const SplitAttributes& a) {
  Layout result = layout;
  result.offset += std::accumulate(a.sizes.begin(), a.sizes.begin() + output, std::int64_t{0}) *
                   layout.strides[a.axis];
  return result;
}

std::vector<Tensor> split_gradient(const GradientCall& call, const SplitAttributes& a) {
  std::vector<Tensor> grads;
  for (std::size_t i = 0; i < a.sizes.size(); ++i) grads.push_back(call.grad(static_cast<int>(i)));
  return {concat(grads, a.axis)};
}

// A view of the whole input that stops gradients.
std::optional<Layout> view_same(const TensorType&, const Layout& layout, int, const NoAttributes&) {
  return layout;
}

template <class A>
OpSpec<A> view_op(std::string_view name, std::string_view summary) {
  OpSpec<A> spec{.name = name, .summary = summary};
  spec.cost = [](std::span<const TensorType>, std::span<const TensorType>, const A&) {
    return Cost{};
  };
  return spec;
}

}  // namespace

const Op& reshape_op() {
  static const TypedOp<ReshapeAttributes> op([] {
    auto spec = view_op<ReshapeAttributes>("reshape", "the same elements in another shape");
    spec.infer = infer_reshape, spec.gradient = reshape_gradient, spec.view = view_reshape;
    return spec;
  }());
  return op;
}
const Op& permute_op() {
  static const TypedOp<PermuteAttributes> op([] {
    auto spec = view_op<PermuteAttributes>("permute", "axes in another order");
    spec.infer = infer_permute, spec.gradient = permute_gradient, spec.view = view_permute;
    return spec;
  }());
  return op;
}
const Op& expand_op() {
  static const TypedOp<ExpandAttributes> op([] {
    auto spec =
        view_op<ExpandAttributes>("expand", "repeats along axes of size 1, without copying");
    spec.infer = infer_expand, spec.gradient = expand_gradient, spec.view = view_expand;
    return spec;
  }());
  return op;
}
const Op& slice_op() {
  static const TypedOp<SliceAttributes> op([] {
    auto spec = view_op<SliceAttributes>("slice", "every step-th element of a range of one axis");
    spec.infer = infer_slice, spec.gradient = slice_gradient, spec.view = view_slice;
    return spec;
  }());
  return op;
}
const Op& split_op() {
  static const TypedOp<SplitAttributes> op([] {
    auto spec = view_op<SplitAttributes>("split", "consecutive parts of one axis");
    spec.infer = infer_split, spec.gradient = split_gradient, spec.view = view_split;
    return spec;
  }());
  return op;
}
const Op& stop_gradient_op() {
  static const TypedOp<NoAttributes> op([] {
    auto spec =
        view_op<NoAttributes>("stop_gradient", "the same value, constant to differentiation");
    spec.infer = [](const Call& call, const NoAttributes&) { return std::vector{call.inputs[0]}; };
    spec.gradient = zero_gradient, spec.view = view_same;
    return spec;
  }());
  return op;
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  return shape == x.shape() ? x : apply1(reshape_op(), {x}, ReshapeAttributes{shape});
}

Tensor flatten(const Tensor& x, int first_axis) {
  Shape shape;
  const int first = wrap_axis(reshape_op(), x, first_axis);
  for (int i = 0; i < first; ++i) shape.push_back(x.shape()[i]);
  std::int64_t rest = 1;
  for (int i = first; i < x.rank(); ++i) rest *= x.shape()[i];
  shape.push_back(rest);
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const Axes& order) {
  Axes axes;
  bool identity = order.size() == x.rank();
  for (int i = 0; i < order.size(); ++i) {
    axes.push_back(wrap_axis(permute_op(), x, order[i]));
    identity &= axes[i] == i;
  }
  return identity ? x : apply1(permute_op(), {x}, PermuteAttributes{axes});
}

Tensor transpose(const Tensor& x, int a, int b) {
  Axes order;
  for (int i = 0; i < x.rank(); ++i) order.push_back(i);
  std::swap(order[wrap_axis(permute_op(), x, a)], order[wrap_axis(permute_op(), x, b)]);
  return permute(x, order);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  return shape == x.shape() ? x : apply1(expand_op(), {x}, ExpandAttributes{shape});
}

Tensor squeeze(const Tensor& x, int axis) {
  const int a = wrap_axis(reshape_op(), x, axis);
  Shape shape = x.shape();
  if (shape[a] != 1) {
    call_on(reshape_op(), x)
        .fail_shape(fmt::format("squeeze: axis {} must have size 1, but has {}", a, shape[a]));
  }
  shape.erase(a);
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int axis) {
  Shape shape = x.shape();
  shape.insert(wrap_axis(reshape_op(), x, axis, x.rank() + 1), 1);
  return reshape(x, shape);
}

Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step) {
  return apply1(slice_op(), {x}, SliceAttributes{wrap_axis(slice_op(), x, axis), begin, end, step});
}

std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<std::int64_t>& sizes) {
  return apply(split_op(), {x}, SplitAttributes{wrap_axis(split_op(), x, axis), sizes});
}

std::vector<Tensor> chunk(const Tensor& x, int axis, int parts) {
  const int a = wrap_axis(split_op(), x, axis);
  if (parts < 1 || x.shape()[a] % parts != 0) {
    call_on(split_op(), x)
        .fail_value(fmt::format("axis {} of size {} does not divide into {} equal parts", a,
                                x.shape()[a], parts));
  }
  return split(x, a,
               std::vector<std::int64_t>(static_cast<std::size_t>(parts), x.shape()[a] / parts));
}

Tensor stop_gradient(const Tensor& x) { return apply1(stop_gradient_op(), {x}); }

}  // namespace ebb
