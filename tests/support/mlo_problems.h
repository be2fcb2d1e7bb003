// Small multilevel problems in float64 whose every number is known.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ebb/mlo/engine.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "support/op_check.h"

namespace ebb::test {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

inline Tensor vector_of(const Row& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}
inline Tensor matrix_of(const Matrix& rows) {
  Row flat;
  for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return Tensor::from(flat, {static_cast<std::int64_t>(rows.size()),
                             static_cast<std::int64_t>(rows.front().size())});
}

inline Row times(const Matrix& a, const Row& x) {
  Row y(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < x.size(); ++k) y[i] += a[i][k] * x[k];
  return y;
}
inline Matrix transposed(const Matrix& a) {
  Matrix t(a.front().size(), Row(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k) t[k][i] = a[i][k];
  return t;
}
// a⁻¹ b, by elimination with pivots.
inline Row solved(Matrix a, Row b) {
  const std::size_t n = b.size();
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = c;
    for (std::size_t r = c; r < n; ++r)
      if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
    std::swap(a[c], a[pivot]), std::swap(b[c], b[pivot]);
    for (std::size_t r = c + 1; r < n; ++r) {
      const double f = a[r][c] / a[c][c];
      for (std::size_t k = c; k < n; ++k) a[r][k] -= f * a[c][k];
      b[r] -= f * b[c];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}
inline Row plus(const Row& a, const Row& b, double scale = 1.0) {
  Row sum = a;
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] += scale * b[i];
  return sum;
}
inline double distance(const Row& a, const Row& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// One vector of parameters.
struct Point : nn::Module<Point> {
  explicit Point(const Row& start)
      : Module(nn::Place{nullptr, {}, device::cpu, f64, false}),
        value(parameter("value", {static_cast<std::int64_t>(start.size())},
                        nn::Initial::constant(0.0))) {
    value.assign(vector_of(start));
  }
  Row get() const { return values_of(value); }
  Variable value;
};

// A problem on a Point whose loss is a function; its batches are those given, in turn, for ever.
struct PointProblem : mlo::Problem {
  using Loss = std::function<mlo::StepOutput(const Batch&)>;
  PointProblem(const std::string& name, Point& at, const optim::Optimizer& optimizer,
               const mlo::Config& config, Loss l, optim::SchedulePtr schedule = optim::constant())
      : Problem(name, at, optimizer, {config, std::move(schedule), {}}),
        point(at),
        loss(std::move(l)) {}
  mlo::StepOutput training_step(const Batch& batch) override { return loss(batch); }
  Batch get_batch() override {
    return {{Tensor::from(Row{batches[static_cast<std::size_t>(next++) % batches.size()]}, {})}};
  }
  std::vector<TensorType> batch_types() const override { return {{{}, f64}}; }

  Point& point;
  Loss loss;
  Row batches = {0.0};  // one number each
  std::int64_t next = 0;
};

// The change of the parameters in one step of plain descent with rate 1: their whole gradient.
inline Row gradient_by_step(mlo::Engine& engine, const Point& point) {
  const Row before = point.get();
  engine.train_step();
  return plus(before, point.get(), -1.0);
}

}  // namespace ebb::test
