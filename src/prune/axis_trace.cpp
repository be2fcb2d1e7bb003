#include "prune/axis_trace.h"

#include <algorithm>
#include <string_view>

#include "ebb/ops.h"
#include "ops/attention/attention.h"
#include "ops/concat/concat.h"
#include "ops/conv2d/conv2d.h"
#include "ops/matmul/matmul.h"
#include "ops/pool/pool.h"
#include "ops/reduce/reduce.h"

namespace ebb::prune {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

const Shape& shape_of(const Node& node, int input) { return node.inputs()[at(input)].shape(); }

int channel_axis(const Shape& shape, ImageLayout layout) {
  return layout == ImageLayout::channels_last ? shape.rank() - 1 : 1;
}

}  // namespace

AxisTrace::AxisTrace(const std::vector<std::shared_ptr<Node>>& nodes,
                     const std::vector<Tensor>& outputs) {
  for (const auto& node : nodes) visit(*node);
  for (const Tensor& output : outputs)
    for (const AxisLabels& axis : values_.at(output)) classes_.fix(axis);
}

void AxisTrace::visit(const Node& node) {
  const std::string_view op = node.op().name();
  if (node.inputs().empty()) return leaf(node);
  if (op == "expand" || op == "stop_gradient" || op == "identity" || op == "cast" ||
      node.op().pointwise())
    return elementwise(node);
  if (op == "matmul") return matmul(node);
  if (op == "conv2d") return conv2d(node);
  if (op == "attention") return attention(node);
  if (op == "rotary") return rotary(node);
  if (op == "layer_norm" || op == "rms_norm") return row_norm(node);
  if (op == "embedding") return embedding(node);
  if (op == "reshape") return reshape(node);
  if (op == "permute") return permute(node);
  if (op == "slice" || op == "split") return slice(node);
  if (op == "concat") return concat(node);
  if (reduce_kind(node.op())) return reduce(node);
  if (op == "max_pool2d" || op == "avg_pool2d") return pool(node);
  unknown(node);
}

AxisTrace::Axes& AxisTrace::set(const Node& node, int output, Axes axes) {
  const Tensor value(std::const_pointer_cast<Node>(node.shared_from_this()), output);
  return values_[value] = std::move(axes);
}

// Variables have classes of their own, and so have filled tensors, which have any size. Axes of
// size 1 broadcast, so they are never removed.
void AxisTrace::leaf(const Node& node) {
  const bool free = node.op().name() == "variable" || node.op().name() == "full";
  for (std::size_t o = 0; o < node.outputs().size(); ++o) {
    const Shape& shape = node.outputs()[o].shape;
    Axes axes(at(shape.rank()));
    if (free)
      for (int i = 0; i < shape.rank(); ++i)
        if (shape[i] > 1) axes[at(i)] = classes_.fresh_axis(shape[i]);
    set(node, static_cast<int>(o), std::move(axes));
  }
}

void AxisTrace::elementwise(const Node& node) {
  const Shape& shape = node.outputs().front().shape;
  Axes axes(at(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 1) continue;
    const AxisLabels* first = nullptr;
    for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i) {
      const Shape& from = shape_of(node, i);
      const int own = axis - (shape.rank() - from.rank());
      if (own < 0 || from[own] != shape[axis]) continue;
      const AxisLabels& labels = in(node, i)[at(own)];
      if (first)
        tie_all(*first, labels);
      else
        first = &labels;
    }
    if (first) axes[at(axis)] = *first;
  }
  set(node, 0, std::move(axes));
}

void AxisTrace::matmul(const Node& node) {
  const auto& attributes = node.attributes().as<MatmulAttributes>();
  const Axes &a = in(node, 0), &b = in(node, 1);
  const int ra = static_cast<int>(a.size()), rb = static_cast<int>(b.size());
  if (ra < 2 || rb < 2) return unknown(node);
  const int a_sum = ra - (attributes.transpose_a ? 2 : 1), a_rows = 2 * ra - 3 - a_sum,
            b_sum = rb - (attributes.transpose_b ? 1 : 2), b_columns = 2 * rb - 3 - b_sum;
  tie_all(a[at(a_sum)], b[at(b_sum)]);
  classes_.mark(a[at(a_sum)], summed_trait);
  summed_.push_back({node.inputs()[0], a_sum});

  const Shape& shape = node.outputs().front().shape;
  Axes axes(at(shape.rank()));
  axes[at(shape.rank() - 2)] = a[at(a_rows)];
  axes[at(shape.rank() - 1)] = b[at(b_columns)];
  if (node.inputs().size() > 2) tie_all(axes.back(), in(node, 2).back());
  for (const Axes* factor : {&a, &b})  // leading axes, which broadcast
    for (int i = 0; i + 2 < static_cast<int>(factor->size()); ++i) {
      const int axis = shape.rank() - static_cast<int>(factor->size()) + i;
      const AxisLabels& labels = (*factor)[at(i)];
      if (labels.size() != static_cast<std::size_t>(shape[axis])) continue;
      if (axes[at(axis)].empty())
        axes[at(axis)] = labels;
      else
        tie_all(axes[at(axis)], labels);
    }
  set(node, 0, std::move(axes));
}

void AxisTrace::conv2d(const Node& node) {
  const auto& attributes = node.attributes().as<Conv2dAttributes>();
  const Axes &x = in(node, 0), &weight = in(node, 1);
  const Shape& shape = node.outputs().front().shape;
  const int channel = channel_axis(shape, attributes.layout);
  const AxisLabels& outputs = weight[0];
  // A convolution of each channel by itself keeps the channels apart; other groups do not.
  const bool each = attributes.groups > 1 && attributes.groups == shape_of(node, 0)[channel] &&
                    attributes.groups == shape[channel];
  if (attributes.groups > 1 && !each) return unknown(node);
  if (each) {
    tie_all(x[at(channel)], outputs);
  } else {
    tie_all(x[at(channel)], weight[at(channel)]);
    classes_.mark(x[at(channel)], summed_trait);
    summed_.push_back({node.inputs()[0], channel});
  }
  classes_.mark(x[at(channel)], channel_trait);
  classes_.mark(outputs, channel_trait);
  for (int i = 1; i < 4; ++i)
    if (i != channel) {
      classes_.fix(x[at(i)]);
      classes_.fix(weight[at(i)]);  // the kernel
    }
  Axes axes(4);
  axes[0] = x[0];
  axes[at(channel)] = outputs;
  if (node.inputs().size() > 2) tie_all(outputs, in(node, 2).front());
  set(node, 0, std::move(axes));
}

// (q, k, v[, mask]) → (o (B, T, H, Dv), logsumexp (B, H, T)).
void AxisTrace::attention(const Node& node) {
  const Axes &q = in(node, 0), &k = in(node, 1), &v = in(node, 2);
  const std::int64_t heads = shape_of(node, 0)[1], key_heads = shape_of(node, 1)[1];
  for (const Axes* operand : {&q, &k, &v})
    for (const int axis : {2, 3}) classes_.fix((*operand)[at(axis)]);
  tie_all(k[1], v[1]);
  const AxisLabels &queries = q[1], &keys = k[1];
  if (queries.empty() || keys.empty()) {  // also if all queries share one key head
    classes_.fix(queries);
    classes_.fix(keys);
  } else {
    for (std::size_t h = 0; h < queries.size(); ++h)
      classes_.tie(queries[h], keys[h / static_cast<std::size_t>(heads / key_heads)]);
  }
  classes_.mark(queries, head_trait);
  if (node.inputs().size() > 3)
    for (const AxisLabels& axis : in(node, 3)) classes_.fix(axis);
  if (node.inputs().size() > 3 && shape_of(node, 3).rank() == 4 && shape_of(node, 3)[1] > 1)
    classes_.fix(queries);  // a mask for each head
  set(node, 0, {q[0], {}, queries, {}});
  set(node, 1, {q[0], queries, {}});
}

void AxisTrace::rotary(const Node& node) {
  Axes axes = in(node, 0);
  for (std::size_t i = axes.size() - 2; i < axes.size(); ++i) {
    classes_.fix(axes[i]);
    axes[i].clear();
  }
  set(node, 0, std::move(axes));
}

void AxisTrace::row_norm(const Node& node) {
  const Axes axes = in(node, 0);
  for (int i = 1; i < static_cast<int>(node.inputs().size()); ++i)
    tie_all(axes.back(), in(node, i).back());
  classes_.mark(axes.back(), normalised_trait);
  const Axes rows(axes.begin(), axes.end() - 1);
  for (int o = 1; o < static_cast<int>(node.outputs().size()); ++o) set(node, o, rows);
  set(node, 0, axes);
}

void AxisTrace::embedding(const Node& node) {
  const Axes& weight = in(node, 0);
  classes_.fix(weight[0]);  // any row may be asked for
  Axes axes = in(node, 1);
  for (AxisLabels& axis : axes) classes_.fix(axis);
  axes.push_back(weight[1]);
  set(node, 0, std::move(axes));
}

AxisLabels AxisTrace::flattened(const Axes& axes, const Shape& shape, int first, int last) {
  int carriers = 0, carrier = first;
  for (int i = first; i < last; ++i)
    if (!axes[at(i)].empty()) ++carriers, carrier = i;
  if (carriers == 0) return {};
  if (carriers > 1) {  // an element would belong to two classes
    for (int i = first; i < last; ++i) classes_.fix(axes[at(i)]);
    return {};
  }
  std::int64_t outer = 1, inner = 1;
  for (int i = first; i < carrier; ++i) outer *= shape[i];
  for (int i = carrier + 1; i < last; ++i) inner *= shape[i];
  AxisLabels elements;
  for (std::int64_t o = 0; o < outer; ++o)
    for (const Label label : axes[at(carrier)])
      elements.insert(elements.end(), static_cast<std::size_t>(inner), label);
  return elements;
}

void AxisTrace::unflatten(const AxisLabels& elements, const Shape& shape, int first, int last,
                          Axes& axes) {
  if (elements.empty()) return;
  int carrier = first;
  while (carrier < last && shape[carrier] == 1) ++carrier;
  const std::size_t size = static_cast<std::size_t>(shape[carrier]), run = elements.size() / size;
  AxisLabels labels(size);
  for (std::size_t i = 0; i < size; ++i) {
    labels[i] = elements[i * run];
    for (std::size_t j = 1; j < run; ++j) classes_.tie(labels[i], elements[i * run + j]);
  }
  axes[at(carrier)] = std::move(labels);
}

// Cuts both shapes into the smallest runs of axes with the same number of elements.
void AxisTrace::reshape(const Node& node) {
  const Shape &from = shape_of(node, 0), &to = node.outputs().front().shape;
  const Axes& x = in(node, 0);
  if (from.elements() == 0) return unknown(node);
  Axes axes(at(to.rank()));
  int i = 0, j = 0;
  while (i < from.rank() && j < to.rank()) {
    const int first_in = i, first_out = j;
    std::int64_t have = from[i++], want = to[j++];
    while (have != want) (have < want ? have : want) *= have < want ? from[i++] : to[j++];
    unflatten(flattened(x, from, first_in, i), to, first_out, j, axes);
  }
  set(node, 0, std::move(axes));
}

// The strides of each axis are set to the axis's number, so the strides of the view give the order.
void AxisTrace::permute(const Node& node) {
  const Axes& x = in(node, 0);
  Layout layout;
  for (int i = 0; i < static_cast<int>(x.size()); ++i) layout.strides.push_back(i);
  const Layout view = node.op().view(node.inputs()[0].type(), layout, 0, node.attributes()).value();
  Axes axes;
  for (const std::int64_t axis : view.strides) axes.push_back(x[static_cast<std::size_t>(axis)]);
  set(node, 0, std::move(axes));
}

// The offset and the strides of a view of a contiguous input tell where each axis begins and how
// far apart its indices are.
void AxisTrace::slice(const Node& node) {
  const Axes& x = in(node, 0);
  const Shape& from = shape_of(node, 0);
  const Layout whole{contiguous_strides(from), 0};
  for (int o = 0; o < static_cast<int>(node.outputs().size()); ++o) {
    const Shape& to = node.outputs()[at(o)].shape;
    const Layout view =
        node.op().view(node.inputs()[0].type(), whole, o, node.attributes()).value();
    std::int64_t offset = view.offset;
    Axes axes(x.size());
    for (int i = 0; i < from.rank(); ++i) {
      const std::int64_t stride = whole.strides[i];
      const std::int64_t begin = stride > 0 ? offset / stride : 0;
      offset -= begin * stride;
      if (x[at(i)].empty() || to[i] == 1) continue;
      const std::int64_t step = view.strides[i] / stride;
      for (std::int64_t k = 0; k < to[i]; ++k)
        axes[at(i)].push_back(x[at(i)][static_cast<std::size_t>(begin + k * step)]);
    }
    set(node, o, std::move(axes));
  }
}

void AxisTrace::concat(const Node& node) {
  const int joined = node.attributes().as<ConcatAttributes>().axis;
  const Shape& shape = node.outputs().front().shape;
  Axes axes(at(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis)
    for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i) {
      const AxisLabels& labels = in(node, i)[at(axis)];
      const std::int64_t size = shape_of(node, i)[axis];
      if (axis != joined) {
        if (i == 0)
          axes[at(axis)] = labels;
        else
          tie_all(axes[at(axis)], labels);
      } else if (labels.empty()) {
        axes[at(axis)].insert(axes[at(axis)].end(), static_cast<std::size_t>(size), Classes::fixed);
      } else {
        axes[at(axis)].insert(axes[at(axis)].end(), labels.begin(), labels.end());
      }
    }
  set(node, 0, std::move(axes));
}

void AxisTrace::reduce(const Node& node) {
  const auto& attributes = node.attributes().as<ReduceAttributes>();
  const Axes& x = in(node, 0);
  Axes axes;
  for (int i = 0; i < static_cast<int>(x.size()); ++i) {
    const bool reduced = attributes.axes.contains(i);
    if (reduced) classes_.fix(x[at(i)]);
    if (!reduced) axes.push_back(x[at(i)]);
    if (reduced && attributes.keep) axes.emplace_back();
  }
  set(node, 0, std::move(axes));
}

void AxisTrace::pool(const Node& node) {
  const int channel =
      channel_axis(shape_of(node, 0), node.attributes().as<PoolAttributes>().layout);
  const Axes& x = in(node, 0);
  Axes axes(x.size());
  for (int i = 0; i < static_cast<int>(x.size()); ++i)
    if (i == channel)
      axes[at(i)] = x[at(i)];
    else
      classes_.fix(x[at(i)]);
  for (int o = 1; o < static_cast<int>(node.outputs().size()); ++o) set(node, o, axes);
  set(node, 0, std::move(axes));
}

void AxisTrace::unknown(const Node& node) {
  for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i)
    for (const AxisLabels& axis : in(node, i)) classes_.fix(axis);
  for (int o = 0; o < static_cast<int>(node.outputs().size()); ++o)
    set(node, o, Axes(at(node.outputs()[at(o)].shape.rank())));
}

}  // namespace ebb::prune
