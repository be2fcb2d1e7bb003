#include "support/random_graph.h"

#include <algorithm>
#include <optional>

#include "ebb/storage.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

std::optional<std::uint64_t> asked_graphs;

class Builder {
 public:
  Builder(std::uint64_t seed, DType dtype, std::int64_t scale)
      : random_(seed), dtype_(dtype), scale_(scale), largest_(200 * scale * scale) {}

  RandomGraph build(int size) {
    for (int i = 0; i < 3; ++i) add_leaf(i);
    for (int i = 0; i < size; ++i) add(bounded(next()));
    finish();
    return std::move(result_);
  }

 private:
  // Numbers below `limit`; the library's distributions differ between implementations.
  int below(std::int64_t limit) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool coin() { return below(2) == 0; }

  Tensor value(const Shape& shape) {
    return make_input(SampleInput::real(shape), dtype_, random_());
  }
  Tensor index(const Shape& shape, std::int64_t limit) {
    return make_input(SampleInput::index(shape, limit, coin() ? i64 : i32), dtype_, random_());
  }
  Shape shape() {
    Shape result;
    for (int rank = below(4); rank > 0; --rank) {
      const int extent = 1 + below(5);
      result.push_back(extent == 1 ? 1 : extent * scale_);
    }
    return result;
  }

  void add(const Tensor& t) { pool_.push_back(t); }
  // Any tensor, recent ones more often: long chains and long lives both appear.
  const Tensor& pick() {
    const std::size_t n = pool_.size();
    return coin() ? pool_[static_cast<std::size_t>(below(static_cast<std::int64_t>(n)))]
                  : pool_[n - 1 -
                          static_cast<std::size_t>(
                              below(std::min<std::int64_t>(4, static_cast<std::int64_t>(n))))];
  }
  Tensor pick_with_axis() {
    const Tensor& t = pick();
    return t.rank() > 0 ? t : expand(t, {2 + below(3)});
  }
  Tensor pick_matrix() {
    const Tensor& t = pick();
    if (t.rank() >= 2) return t;
    return t.rank() == 1 ? unsqueeze(t, coin() ? 0 : 1) : reshape(t, {1, 1});
  }

  void add_leaf(int number) {
    const Shape s = shape();
    result_.variables.emplace_back(value(s));
    result_.initial.push_back(eval(value(s)));
    add(result_.variables.back());
    const Shape t = shape();
    result_.graph.inputs.push_back(input({t, dtype_}, "input " + std::to_string(number)));
    result_.input_values.push_back(value(t));
    add(result_.graph.inputs.back());
    add(value(shape()));
  }

  // Small enough in size and in numbers: a NaN would hide all that comes after it.
  Tensor bounded(Tensor t) {
    if (t.shape().elements() > largest_) t = mean(t, {below(t.rank())});
    return t.shape().elements() > largest_ ? mean(t) : t;
  }

  Tensor next() {
    switch (below(22)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return unary();
      case 4:
      case 5:
      case 6:
        return binary();
      case 7:
      case 8:
        return tanh(reduction());
      case 9: {
        const Tensor t = pick();
        Axes order;
        for (int i = 0; i < t.rank(); ++i) order.insert(below(i + 1), i);
        return permute(t, order);
      }
      case 10:
        return reshaped();
      case 11: {
        const Tensor t = pick_with_axis();
        const int axis = below(t.rank());
        const int begin = below(t.shape()[axis]), end = begin + 1 + below(t.shape()[axis] - begin);
        return slice(t, axis, begin, end, 1 + below(2));
      }
      case 12: {
        const Tensor t = pick();
        Shape s = t.shape();
        if (s.rank() >= 4) return t * 0.5;
        for (std::int64_t& extent : s) extent = extent == 1 && coin() ? 2 : extent;
        s.insert(0, 1 + below(3));
        return expand(t, s);
      }
      case 13: {
        const Tensor t = pick_with_axis();
        const int axis = below(t.rank());
        const std::int64_t size = t.shape()[axis], first = below(size);
        const auto parts = split(t, axis, {first, size - first});
        if (coin() && first > 0) add(parts[0]);
        return parts[1];
      }
      case 14: {
        const Tensor t = pick_with_axis();
        return coin() ? concat({t, sin(t), t}, below(t.rank()))
                      : stack({t, cos(t)}, -1 - below(t.rank()));
      }
      case 15: {
        const Tensor a = pick_matrix();
        if (coin()) return tanh(matmul(a, a, Transpose::no, Transpose::yes));
        const std::int64_t k = a.shape().back();
        return tanh(coin() ? linear(a, value({3, k}), value({3})) : matmul(a, value({k, 2})));
      }
      case 16: {
        const Tensor t = pick_with_axis();
        const int axis = below(t.rank());
        Shape s = t.shape();
        s[axis] = 1 + below(5);
        if (coin()) return gather(t, axis, index(s, t.shape()[axis]));
        return tanh(scatter_add(t, axis, index(s, t.shape()[axis]), value(s)));
      }
      case 17:
        return dropout(pick(), 0.25);
      case 18: {
        const Tensor t = pick();
        IntList before, after;
        for (int i = 0; i < t.rank(); ++i) before.push_back(below(2)), after.push_back(below(2));
        return pad(t, before, after, 0.5);
      }
      case 19: {
        const Tensor& a = pick();
        return where(greater(a, scalar_like(a, 0.1)), a * 0.75, coin() ? zeros_like(a) : cos(a));
      }
      case 20: {
        const Tensor& t = pick();
        const DType other = std::array{f16, bf16, f32, f64}[static_cast<std::size_t>(below(4))];
        return cast(cast(t, other), dtype_);
      }
      default:
        switch (below(4)) {
          case 0:
            return contiguous(pick());
          case 1:
            return stop_gradient(pick());
          case 2:
            return random_uniform(shape(), -1.0, 1.0, dtype_);
          default:
            return random_normal(shape(), 0.0, 0.5, dtype_);
        }
    }
  }

  Tensor unary() {
    const Tensor& x = pick();
    switch (below(12)) {
      case 0:
        return tanh(x);
      case 1:
        return sigmoid(x);
      case 2:
        return tanh(gelu(x));
      case 3:
        return relu(x) * 0.5;
      case 4:
        return sin(x);
      case 5:
        return erf(x);
      case 6:
        return exp(-abs(x));
      case 7:
        return sqrt(square(x) + 0.5) * 0.5;
      case 8:
        return reciprocal(1.0 + square(x));
      case 9:
        return clamp(x, -0.8, 0.9);
      case 10:
        return log(1.5 + tanh(x));
      default:
        return 0.25 - x * 0.5;
    }
  }

  Tensor binary() {
    Tensor a = pick(), b = pick();
    Shape joined;
    if (!broadcast(a.shape(), b.shape(), joined)) b = coin() ? mean(b) : cos(a);
    switch (below(5)) {
      case 0:
        return tanh(a + b);
      case 1:
        return (a - b) * 0.5;
      case 2:
        return tanh(a * b);
      case 3:
        return tanh(a / (1.5 + sigmoid(b)));
      default:
        return coin() ? maximum(a, b) : minimum(a, b);
    }
  }

  // Of what others read too, or of elements that nobody else sees.
  Tensor reduction() {
    Tensor t = coin() ? pick() : coin() ? unary() : binary();
    if (below(4) == 0) t = reshape(t, {-1});
    Axes axes;
    for (int i = 0; i < t.rank(); ++i)
      if (coin()) axes.push_back(i);
    const Keep keep = coin() ? Keep::yes : Keep::no;
    switch (below(5)) {
      case 0:
        return sum(t, axes, keep);
      case 1:
        return mean(t, axes, keep);
      case 2:
        return max(t, axes, keep);
      case 3:
        return min(t, axes, keep);
      default:
        return cast(sum_squares(t, axes, keep), t.dtype());
    }
  }

  Tensor reshaped() {
    const Tensor& t = pick();
    const std::int64_t n = t.shape().elements();
    for (std::int64_t part : {4, 3, 2})
      if (n % part == 0 && coin()) return reshape(t, coin() ? Shape{part, -1} : Shape{-1, part});
    return t.rank() > 0 && coin() ? flatten(t) : unsqueeze(t, 0);
  }

  void finish() {
    Graph& graph = result_.graph;
    Tensor loss = scalar_like(pool_.front(), 0.0);
    for (std::size_t i = 0; i < pool_.size(); i += 6)
      loss = loss + mean(tanh(pick())) + mean(tanh(pool_[i]));
    std::vector<Tensor> wrt(result_.variables.begin(), result_.variables.end());
    wrt.push_back(graph.inputs[0]);
    const std::vector<Tensor> gradients = grad(loss, wrt);
    graph.outputs = {loss, gradients.back()};
    for (int i = 0; i < 4; ++i) graph.outputs.push_back(pick());
    if (coin()) graph.outputs.push_back(result_.variables[0]);
    for (std::size_t i = 0; i < result_.variables.size(); ++i)
      if (below(4) > 0) graph.updates.push_back({result_.variables[i], new_value(i, gradients[i])});
  }

  // By gradient, by a neighbour's old value, by the neighbour's new one, or by any tensor that
  // fits.
  Tensor new_value(std::size_t i, const Tensor& gradient) {
    const Variable& own = result_.variables[i];
    const Variable& other = result_.variables[(i + 1) % result_.variables.size()];
    const Tensor stepped = own - gradient * 0.125;
    switch (below(5)) {
      case 0:
        return other.shape() == own.shape() ? static_cast<Tensor>(other) : stepped + mean(other);
      case 1:
        return stepped + (result_.graph.updates.empty() ? mean(gradient)
                                                        : mean(result_.graph.updates.back().value));
      case 2: {
        for (const Tensor& t : pool_)
          if (t.shape() == own.shape() && below(3) == 0) return t;
        return reshape(reshape(own, {-1}), own.shape());
      }
      default:
        return stepped;
    }
  }

  std::mt19937_64 random_;
  DType dtype_;
  std::int64_t scale_, largest_;  // larger tensors, in elements, are reduced before they are used
  std::vector<Tensor> pool_;
  RandomGraph result_;
};

}  // namespace

void RandomGraph::reset_variables() {
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
}

RandomGraph random_graph(std::uint64_t seed, int size, DType dtype, std::int64_t scale) {
  const TraceScope fresh;
  return Builder(seed, dtype, scale).build(size);
}

std::uint64_t graphs_to_try(std::uint64_t usual) { return asked_graphs.value_or(usual); }
void set_graphs_to_try(std::uint64_t count) { asked_graphs = count; }

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(t.type().bytes().count));
  const Tensor value = t.node()->storage() ? t : eval(t);
  value.node()->storage()->read(bytes);
  return bytes;
}

Image two_steps(RandomGraph& random, Program& program) {
  random.reset_variables();
  program.set_step(0);
  Image image;
  for (int step = 0; step < 2; ++step) {
    program.run(random.input_values);
    for (std::size_t i = 0; i < random.graph.outputs.size(); ++i)
      image.push_back(bytes_of(program.output(static_cast<int>(i))));
    for (const Variable& variable : random.variables) image.push_back(bytes_of(variable));
  }
  return image;
}

}  // namespace ebb::test
