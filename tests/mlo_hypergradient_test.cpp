// Hypergradients compared with closed forms in float64; each method must reach its theoretical
// error.
#include <gtest/gtest.h>

#include "ebb/grad.h"
#include "ebb/optim/adam.h"
#include "ebb/optim/sgd.h"
#include "support/mlo_problems.h"

namespace ebb::test {
namespace {

using mlo::Config;
using mlo::Method;

const Matrix a{
    {2.0, 0.3, 0.0, 0.1}, {0.3, 1.5, 0.2, 0.0}, {0.0, 0.2, 1.0, 0.3}, {0.1, 0.0, 0.3, 0.8}};
const Matrix b{{1.0, 0.5}, {-0.4, 0.7}, {0.2, -1.1}, {0.6, 0.1}};
const Row w0{0.3, -0.8, 0.5, 1.1}, target{1.0, 0.2, -0.3, 0.4}, lambda0{0.7, -0.4};

Tensor dot_of(const Tensor& x, const Tensor& y) { return sum(x * y); }
Tensor quadratic(const Matrix& m, const Tensor& x) {
  return dot_of(x, reshape(matmul(matrix_of(m), reshape(x, {-1, 1})), {-1})) * 0.5;
}
Tensor product(const Matrix& m, const Tensor& x) {
  return reshape(matmul(matrix_of(m), reshape(x, {-1, 1})), {-1});
}

// Below: w with loss ½ wᵀAw - wᵀBλ. Above: λ with loss ½ |w - target|² + 0.05 |λ|².
struct TwoLevels {
  Point w{w0}, lambda{lambda0};
  PointProblem lower, upper;
  mlo::Engine engine;

  explicit TwoLevels(const Config& config,
                     const optim::Optimizer& optimizer = optim::SGD{.lr = 0.0},
                     std::function<Tensor(const Tensor&, const Tensor&)> loss = {})
      : lower("lower", w, optimizer, config,
              [this, loss](const Batch&) {
                return loss ? loss(w.value, lambda.value)
                            : quadratic(a, w.value) - dot_of(w.value, product(b, lambda.value));
              }),
        upper("upper", lambda, optim::SGD{.lr = 1.0}, {},
              [this](const Batch&) {
                return sum_squares(w.value - vector_of(target)) * 0.5 +
                       sum_squares(lambda.value) * 0.05;
              }),
        engine({&upper, &lower}, {.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}}) {}

  // The upper level's gradient without that of its own loss in λ.
  Row hypergradient() {
    for (int i = 1; i < lower.config().unroll_steps; ++i) engine.train_step();
    const Row before = lambda.get();
    return plus(gradient_by_step(engine, lambda), before, -0.1);
  }
};

Row vector_at(const Row& w) { return plus(w, target, -1.0); }
Row inverse_times(const Row& v) { return solved(a, v); }

// α Σ_{j ≤ k} (1 - αA)ʲ v
Row neumann_sum(Row v, double alpha, int k) {
  Row sum = v;
  for (int j = 0; j < k; ++j) v = plus(v, times(a, v), -alpha), sum = plus(sum, v);
  for (double& x : sum) x *= alpha;
  return sum;
}

// Products of a few numbers of size one: rounding leaves about 1e-15.
constexpr double rounding = 1e-13;

TEST(Hypergradient, ConjugateGradientsAreExactAfterAsManyStepsAsDimensions) {
  const Row exact = times(transposed(b), inverse_times(vector_at(w0)));
  double last = 1e300;
  for (int steps = 1; steps <= 4; ++steps) {
    TwoLevels levels({.type = Method::cg, .cg_iterations = steps});
    const double error = distance(levels.hypergradient(), exact);
    EXPECT_LT(error, last) << steps;
    last = error;
    if (steps == 3) {
      EXPECT_GT(error, 1e-5);  // not before
    }
  }
  EXPECT_LT(last, 1e-12);
  // The solution does not depend on alpha, and more steps do no harm.
  for (double alpha : {0.1, 3.0}) {
    TwoLevels levels({.type = Method::cg, .cg_iterations = 4, .cg_alpha = alpha});
    EXPECT_LT(distance(levels.hypergradient(), exact), 1e-12) << alpha;
  }
  TwoLevels levels({.type = Method::cg, .cg_iterations = 12});
  EXPECT_LT(distance(levels.hypergradient(), exact), 1e-12);
}

TEST(Hypergradient, NeumannSeriesIsTheGeometricSum) {
  for (int terms : {0, 1, 3, 10}) {
    TwoLevels levels({.type = Method::neumann, .neumann_iterations = terms, .neumann_alpha = 0.4});
    const Row expected = times(transposed(b), neumann_sum(vector_at(w0), 0.4, terms));
    EXPECT_LT(distance(levels.hypergradient(), expected), rounding) << terms;
  }
  // The series converges to the exact one as (1 - α · smallest eigenvalue)ᵏ.
  const Row exact = times(transposed(b), inverse_times(vector_at(w0)));
  TwoLevels few({.type = Method::neumann, .neumann_iterations = 20, .neumann_alpha = 0.4}),
      many({.type = Method::neumann, .neumann_iterations = 40, .neumann_alpha = 0.4});
  const double first = distance(few.hypergradient(), exact),
               second = distance(many.hypergradient(), exact);
  const double smallest = 0.558235;  // of A
  EXPECT_NEAR(second / first, std::pow(1.0 - 0.4 * smallest, 20),
              0.3 * std::pow(1 - 0.4 * smallest, 20));
}

// The mixed derivative of ½ wᵀAw - sin(w)ᵀBλ is -cos(w) B.
TEST(Hypergradient, FiniteDifferencesErrWithTheSquareOfTheirWidth) {
  const auto loss = [](const Tensor& w, const Tensor& lambda) {
    return quadratic(a, w) - dot_of(sin(w), product(b, lambda));
  };
  Row bent = vector_at(w0);
  for (std::size_t i = 0; i < bent.size(); ++i) bent[i] *= std::cos(w0[i]);
  const Row exact = times(transposed(b), bent);
  const auto error = [&](Config config) {
    TwoLevels levels(config, optim::SGD{.lr = 0.0}, loss);
    return distance(levels.hypergradient(), exact);
  };
  EXPECT_NEAR(error({.darts_alpha = 0.2}) / error({.darts_alpha = 0.1}), 4.0, 0.05);
  EXPECT_NEAR(error({.darts_alpha = 0.02}) / error({.darts_alpha = 0.01}), 4.0, 0.05);
  EXPECT_LT(error({.darts_alpha = 1e-5}), 1e-10);  // rounding ÷ width
  // Gradient descent preconditions with the identity.
  EXPECT_NEAR(error({.type = Method::sama, .sama_adam_alpha = 0.2}) / error({.darts_alpha = 0.2}),
              1.0, 1e-9);
}

TEST(Hypergradient, FiniteDifferencesLeaveParametersAlone) {
  TwoLevels levels({.darts_alpha = 0.37});
  levels.hypergradient();
  EXPECT_EQ(levels.w.get(), w0);  // to the bit
}

TEST(Hypergradient, ZeroVectorGivesZero) {
  TwoLevels levels({});
  levels.w.value.assign(vector_of(target));
  EXPECT_LT(distance(levels.hypergradient(), {0.0, 0.0}), rounding);
}

// w after k steps of w ← w - η (Aw - Bλ) has the derivative η Σ_{j < k} (1 - ηA)ʲ B in λ.
TEST(Hypergradient, UnrolledIsExactToRounding) {
  for (int steps : {1, 2, 5}) {
    TwoLevels levels({.type = Method::unrolled, .unroll_steps = steps}, optim::SGD{.lr = 0.3});
    Row w = w0;
    for (int i = 0; i < steps; ++i) w = plus(w, plus(times(a, w), times(b, lambda0), -1.0), -0.3);
    const Row found = levels.hypergradient();
    EXPECT_LT(distance(levels.w.get(), w), rounding);
    EXPECT_LT(distance(found, times(transposed(b), neumann_sum(vector_at(w), 0.3, steps - 1))),
              rounding)
        << steps;
  }
}

// Optimizers with state, against differences of the whole run. Truncation leaves about 1e-9.
TEST(Hypergradient, UnrolledGoesThroughTheOptimizersState) {
  const auto loss = [](const Tensor& w, const Tensor& lambda) {
    return quadratic(a, w) - dot_of(sin(w), product(b, lambda));
  };
  for (const optim::Optimizer& optimizer :
       {optim::Optimizer(
            optim::SGD{.lr = 0.2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
        optim::Optimizer(optim::Adam{.lr = 0.1}), optim::Optimizer(optim::AdamW{.lr = 0.1})}) {
    const Config config{.type = Method::unrolled, .unroll_steps = 4};
    const auto loss_with = [&](const Row& lambda) {
      TwoLevels levels(config, optimizer, loss);
      levels.lambda.value.assign(vector_of(lambda));
      levels.hypergradient();
      return levels.upper.last().at("loss") -
             0.05 * (lambda[0] * lambda[0] + lambda[1] * lambda[1]);
    };
    TwoLevels levels(config, optimizer, loss);
    const Row found = levels.hypergradient();
    for (std::size_t i = 0; i < 2; ++i) {
      const double width = 1e-5;
      Row more = lambda0, less = lambda0;
      more[i] += width, less[i] -= width;
      EXPECT_NEAR(found[i], (loss_with(more) - loss_with(less)) / (2 * width), 1e-8)
          << optimizer.rule().name();
    }
  }
}

// Adam's own derivative, by differences of one of its steps in the gradient.
TEST(Hypergradient, SamaPreconditionsWithAdam) {
  const double rate = 0.01;
  Config config{.type = Method::sama, .sama_adam_alpha = 1e-3};
  TwoLevels levels(config, optim::Adam{.lr = rate});
  levels.hypergradient();  // moments as after one step
  const Row w = levels.w.get(), lambda = levels.lambda.get();
  levels.hypergradient();
  // By hand: moments after the second step of the lower level, which came before the upper one's.
  const auto gradient = [&](const Row& at, const Row& l) {
    return plus(times(a, at), times(b, l), -1.0);
  };
  Row mean(4), square(4), at = w0;
  Row expected(2), l = lambda0;
  const auto lower_step = [&](const Row& g, int step) {
    for (std::size_t i = 0; i < 4; ++i) {
      mean[i] = 0.9 * mean[i] + 0.1 * g[i];
      square[i] = 0.999 * square[i] + 0.001 * g[i] * g[i];
      at[i] -= rate * mean[i] / (1 - std::pow(0.9, step)) /
               (std::sqrt(square[i] / (1 - std::pow(0.999, step))) + 1e-8);
    }
  };
  lower_step(gradient(at, lambda0), 1);
  EXPECT_LT(distance(at, w), 1e-12);
  lower_step(gradient(at, lambda), 2);
  EXPECT_LT(distance(at, levels.w.get()), 1e-12);
  const Row g = gradient(at, lambda);
  const auto step_for = [&](std::size_t i, double gi) {
    const double m = 0.9 * mean[i] + 0.1 * gi, s = 0.999 * square[i] + 0.001 * gi * gi;
    return rate * m / (1 - std::pow(0.9, 3)) / (std::sqrt(s / (1 - std::pow(0.999, 3))) + 1e-8);
  };
  Row direction = vector_at(at);
  for (std::size_t i = 0; i < 4; ++i)
    direction[i] *= (step_for(i, g[i] + 1e-6) - step_for(i, g[i] - 1e-6)) / 2e-6;
  expected = times(transposed(b), direction);
  const Row found = plus(plus(lambda, levels.lambda.get(), -1.0), lambda, -0.1);
  // The derivative is what is left of terms that nearly cancel after two steps, and eps is 1e-7 of
  // the root of the mean square beside it.
  EXPECT_LT(distance(found, expected), 1e-5 * distance(expected, {0.0, 0.0}));
}

// Ridge regression: loss |Xw - y|² / n + e^λ |w|² below, the loss on other data above. At the
// solution, conjugate gradients give the exact derivative of the upper loss in λ.
TEST(Hypergradient, RidgeRegression) {
  const Matrix x{
      {1.0, 0.2, -0.5}, {0.3, 1.4, 0.1}, {-0.7, 0.5, 0.9}, {0.2, -0.3, 1.1}, {0.8, 0.6, -0.2}};
  const Row y{0.5, 1.2, -0.3, 0.8, 0.1};
  const Matrix valid_x{{0.4, -0.6, 0.3}, {1.0, 0.1, 0.7}};
  const Row valid_y{0.2, -0.9};
  const auto solution = [&](double lambda) {
    Matrix normal(3, Row(3));
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t k = 0; k < 3; ++k) {
        for (const Row& row : x) normal[i][k] += row[i] * row[k] / 5.0;
        if (i == k) normal[i][k] += std::exp(lambda);
      }
    Row right = times(transposed(x), y);
    for (double& value : right) value /= 5.0;
    return solved(normal, right);
  };
  const auto valid_loss = [&](double lambda) {
    const Row residual = plus(times(valid_x, solution(lambda)), valid_y, -1.0);
    return (residual[0] * residual[0] + residual[1] * residual[1]) / 2.0;
  };
  const double strength = -1.2;
  Point w(solution(strength)), lambda({strength});
  PointProblem lower("ridge", w, optim::SGD{.lr = 0.0}, {.type = Method::cg, .cg_iterations = 3},
                     [&](const Batch&) {
                       return mean(square(product(x, w.value) - vector_of(y))) +
                              sum(exp(lambda.value)) * sum_squares(w.value);
                     });
  PointProblem upper("strength", lambda, optim::SGD{.lr = 1.0}, {}, [&](const Batch&) {
    return mean(square(product(valid_x, w.value) - vector_of(valid_y)));
  });
  mlo::Engine engine({&lower, &upper},
                     {.u2l = {{"strength", {"ridge"}}}, .l2u = {{"ridge", {"strength"}}}});
  const double found = gradient_by_step(engine, lambda)[0];
  EXPECT_NEAR(found, (valid_loss(strength + 1e-5) - valid_loss(strength - 1e-5)) / 2e-5, 1e-9);
}

// Three levels, two paths: λ → θ → w → λ and λ → w → λ. All best responses are linear.
struct ThreeLevels {
  const Matrix a1{{1.3, 0.2}, {0.2, 0.9}}, b1{{0.4, -0.5}, {1.0, 0.3}},
      b2{{0.6, 0.1}, {-0.2, 0.8}, {0.5, 0.5}, {0.0, -0.7}};
  Point theta{{0.2, -0.1}}, w{w0}, lambda{lambda0};
  PointProblem pretrain, finetune, reweight;
  mlo::Engine engine;

  ThreeLevels(const Config& first, const Config& second, const optim::Optimizer& optimizer,
              double top_rate = 1.0)
      : pretrain("pretrain", theta, optimizer, first,
                 [this](const Batch&) {
                   return quadratic(a1, theta.value) -
                          dot_of(tanh(theta.value), product(b1, lambda.value));
                 }),
        finetune("finetune", w, optimizer, second,
                 [this](const Batch&) {
                   return quadratic(a, w.value) - dot_of(sin(w.value), product(b2, theta.value)) -
                          dot_of(w.value, product(b, lambda.value));
                 }),
        reweight("reweight", lambda, optim::SGD{.lr = top_rate}, {},
                 [this](const Batch&) { return sum_squares(w.value - vector_of(target)) * 0.5; }),
        engine({&reweight, &finetune, &pretrain},
               {.u2l = {{"reweight", {"pretrain", "finetune"}}},
                .l2u = {{"pretrain", {"finetune"}}, {"finetune", {"reweight"}}}}) {}
};

TEST(Hypergradient, ChainsAlongTwoPathsOfThreeLevels) {
  const Config first{.type = Method::cg, .cg_iterations = 2},
      second{.type = Method::cg, .cg_iterations = 4};
  ThreeLevels levels(first, second, optim::SGD{.lr = 0.0});
  const Row found = gradient_by_step(levels.engine, levels.lambda);
  // The Hessians and mixed derivatives at this point.
  const Row theta = levels.theta.get();
  const Row bend = times(levels.b2, theta), pull = times(levels.b1, lambda0);
  Matrix h2 = a, h1 = levels.a1;
  for (std::size_t i = 0; i < 4; ++i) h2[i][i] += std::sin(w0[i]) * bend[i];
  for (std::size_t i = 0; i < 2; ++i) {
    const double t = std::tanh(theta[i]);
    h1[i][i] += 2.0 * t * (1.0 - t * t) * pull[i];
  }
  const Row x = solved(h2, vector_at(w0));
  Row bent = x;
  for (std::size_t i = 0; i < 4; ++i) bent[i] *= std::cos(w0[i]);
  Row z = solved(h1, times(transposed(levels.b2), bent));
  for (std::size_t i = 0; i < 2; ++i) z[i] *= 1.0 - std::tanh(theta[i]) * std::tanh(theta[i]);
  const Row expected = plus(times(transposed(levels.b1), z), times(transposed(b), x));
  EXPECT_LT(distance(found, expected), 1e-12);

  Config series = second;
  series = {.type = Method::neumann, .neumann_iterations = 200, .neumann_alpha = 0.4};
  ThreeLevels by_series(first, series, optim::SGD{.lr = 0.0});
  EXPECT_LT(distance(gradient_by_step(by_series.engine, by_series.lambda), expected), 1e-12);
}

// Compares the whole program, three updates below and one in the middle, with finite differences of
// it.
TEST(Hypergradient, TwoPathsAgainstDifferencesOfTheWholeProgram) {
  const optim::Optimizer optimizer = optim::SGD{.lr = 0.2, .momentum = 0.5};
  const Config first{.type = Method::unrolled, .unroll_steps = 3}, second{.type = Method::unrolled};
  const auto run = [&](const Row& lambda, double rate) {
    ThreeLevels levels(first, second, optimizer, rate);
    levels.lambda.value.assign(vector_of(lambda));
    for (int i = 0; i < 3; ++i) levels.engine.train_step();
    return std::pair{levels.reweight.last().at("loss"), plus(lambda, levels.lambda.get(), -1.0)};
  };
  const Row found = run(lambda0, 1.0).second;
  for (std::size_t i = 0; i < 2; ++i) {
    Row more = lambda0, less = lambda0;
    more[i] += 1e-5, less[i] -= 1e-5;
    EXPECT_NEAR(found[i], (run(more, 0.0).first - run(less, 0.0).first) / 2e-5, 1e-9);
  }
}

// A middle level that follows a hypergradient itself: its update w - η (dL₂/dw + response of θ)
// also depends on λ through that response. The whole program is compared with its differences; with
// first_order the response is left out.
TEST(Hypergradient, SecondOrderSeesTheHypergradientsOfLevelsBelow) {
  const Matrix a1{{1.3, 0.2}, {0.2, 0.9}}, b1{{0.4, -0.5, 0.3, 0.2}, {1.0, 0.3, -0.6, 0.1}},
      mixed{{0.5, -0.3}, {0.8, 0.6}};
  const auto run = [&](const Row& start, double rate, bool first_order, const Config& below) {
    Point theta({0.2, -0.1}), w(w0), lambda(start);
    PointProblem low("low", theta, optim::SGD{.lr = 0.0}, below, [&](const Batch&) {
      return quadratic(a1, theta.value) - dot_of(sin(theta.value), product(b1, w.value));
    });
    PointProblem middle("middle", w, optim::SGD{.lr = 0.3}, {.type = Method::unrolled},
                        [&](const Batch&) {
                          return quadratic(a, w.value) - dot_of(w.value, product(b, lambda.value)) +
                                 dot_of(square(theta.value), product(mixed, lambda.value));
                        });
    PointProblem top("top", lambda, optim::SGD{.lr = rate}, {.first_order = first_order},
                     [&](const Batch&) { return sum_squares(w.value - vector_of(target)) * 0.5; });
    mlo::Engine engine({&top, &middle, &low}, {.u2l = {{"middle", {"low"}}, {"top", {"middle"}}},
                                               .l2u = {{"low", {"middle"}}, {"middle", {"top"}}}});
    engine.train_step();
    return std::pair{top.last().at("loss"), plus(start, lambda.get(), -1.0)};
  };
  for (const Config& below :
       {Config{.type = Method::cg, .cg_iterations = 2},
        Config{.type = Method::neumann, .neumann_iterations = 3, .neumann_alpha = 0.5}}) {
    SCOPED_TRACE(mlo::name(below.type));
    Row expected;
    for (std::size_t i = 0; i < 2; ++i) {
      Row more = lambda0, less = lambda0;
      more[i] += 1e-5, less[i] -= 1e-5;
      expected.push_back((run(more, 0.0, true, below).first - run(less, 0.0, true, below).first) /
                         2e-5);
    }
    EXPECT_LT(distance(run(lambda0, 1.0, false, below).second, expected), 1e-9);
    EXPECT_GT(distance(run(lambda0, 1.0, true, below).second, expected), 1e-3);
  }
}

// Samples z = 1 with probability σ(λ), else 0, one for each item; loss ½ (w - z)². The vector v
// sees the mean of z move by v σ'(λ).
TEST(Hypergradient, ReinforceIsRightOnAverage) {
  constexpr std::int64_t items = 20000;
  const double start = 0.4, w_start = 0.3;
  Point w({w_start}), lambda({start});
  PointProblem lower(
      "lower", w, optim::SGD{.lr = 0.0}, {.type = Method::reinforce}, [&](const Batch&) {
        const Tensor p = sigmoid(lambda.value);
        const Tensor z = stop_gradient(
            cast(less(random_uniform({items}, 0.0, 1.0, f64), expand(p, {items})), f64));
        mlo::StepOutput output;
        output.item_losses = square(expand(w.value, {items}) - z) * 0.5;
        output.loss = mean(output.item_losses);
        output.log_probability = z * log(p) + (1.0 - z) * log(1.0 - p);
        return output;
      });
  PointProblem upper("upper", lambda, optim::SGD{.lr = 1.0}, {},
                     [&](const Batch&) { return sum(w.value * 2.0); });  // v = 2
  mlo::Engine engine({&lower, &upper},
                     {.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}});
  const double p = 1.0 / (1.0 + std::exp(-start));
  const double expected = 2.0 * p * (1.0 - p);
  // Without a baseline yet, a term is 2 (w - z)(z - p), of a deviation below 1: the mean of 20000
  // deviates by less than 0.007, and four times that is one case in 15000.
  EXPECT_NEAR(gradient_by_step(engine, lambda)[0], expected, 0.028);
  // The baseline has moved towards the mean reward by one part in a hundred.
  lambda.value.assign(vector_of({start}));
  EXPECT_NEAR(gradient_by_step(engine, lambda)[0], expected, 0.028);
}

TEST(Hypergradient, ReinforceNeedsProbabilities) {
  TwoLevels levels({.type = Method::reinforce});
  expect_error([&] { levels.hypergradient(); }, {"\"lower\"", "log-probability"});
}

TEST(Hypergradient, UnrolledRefusesStateInCodes) {
  TwoLevels levels({.type = Method::unrolled},
                   optim::Optimizer(optim::AdamW8bit{.min_quantised_elements = 1}));
  expect_error([&] { levels.hypergradient(); }, {"\"lower\"", "adamw8bit", "exp_avg.codes"});
}

TEST(Hypergradient, SamaKnowsWhatItCanPrecondition) {
  TwoLevels levels({.type = Method::sama}, optim::Optimizer(optim::Lion{}));
  expect_error([&] { levels.hypergradient(); }, {"lion", "value", "not known"});
}

TEST(Hypergradient, DependenciesThatAreNotThere) {
  TwoLevels levels({}, optim::SGD{.lr = 0.0},
                   [](const Tensor& w, const Tensor&) { return sum_squares(w); });
  expect_error([&] { levels.hypergradient(); }, {"\"lower\"", "reads parameters of \"upper\""});
}

}  // namespace
}  // namespace ebb::test
