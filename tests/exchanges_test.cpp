// Which exchanges between ranks the computation of a step waits for, according to its plan.
#include "plan/exchanges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "plan/arena_layout.h"
#include "plan/lanes.h"

namespace ebb::test {
namespace {

using namespace planning;

// Gradient descent on a perceptron whose gradients two ranks sum. Every instruction takes 1 ms,
// beside what an exchange of it takes on the link. In float64, whose products have no workspace on
// any processor: one would take the bytes of a gradient that is still being exchanged.
Plan planned(const Rates& rates) {
  const Tensor x = input({{64, 32}, f64}, "x");
  std::vector<Variable> weights;
  std::vector<Tensor> parameters;
  Tensor h = x;
  for (int i = 0; i < 4; ++i) {
    weights.emplace_back(random_normal({32, 32}, 0.0, 0.2, f64));
    parameters.push_back(weights.back());
    h = tanh(matmul(h, weights.back()));
  }
  const std::vector<Tensor> gradients = grad(sum(square(h)), parameters);
  Graph graph{.inputs = {x}, .outputs = {}, .updates = {}};
  for (std::size_t i = 0; i < weights.size(); ++i)
    graph.updates.push_back({weights[i], parameters[i] - all_reduce({gradients[i]}, 2, 2) * 0.1});
  Plan plan = plan_program(graph);
  for (Instruction& instruction : plan.instructions) instruction.predicted_ms = 1.0;
  for (const Exchange& one : exchanges_of(plan, rates))
    plan.instructions[one.instruction].predicted_ms += one.link_ms;
  return plan;
}

void in_two_lanes(Plan& plan) {
  mark_beside(plan);
  lay_out(plan.buffers.rows());
  order_lanes(plan);
}

Rates with_latency(double ms) {
  Rates rates;
  rates.ranks = {.bandwidth = 1e18, .latency_us = 1e3 * ms};
  return rates;
}

double sum_of(const std::vector<Exchange>& all, double Exchange::*field) {
  return std::accumulate(all.begin(), all.end(), 0.0,
                         [&](double sum, const Exchange& one) { return sum + one.*field; });
}

double sum_of_times(const Plan& plan) {
  return std::accumulate(
      plan.instructions.begin(), plan.instructions.end(), 0.0,
      [](double sum, const Instruction& instruction) { return sum + instruction.predicted_ms; });
}

TEST(Exchanges, InOneLaneAllOfThemAreWaitedFor) {
  const Rates rates = with_latency(0.5);
  Plan plan = planned(rates);
  const std::vector<Exchange> all = exchanges_of(plan, rates);
  ASSERT_EQ(all.size(), 4u);
  for (const Exchange& one : all) {
    EXPECT_NEAR(one.link_ms, 1.0, 1e-9);  // two exchanges: parts of a sum, and the sum
    EXPECT_EQ(one.exposed_ms, one.link_ms);
    ASSERT_TRUE(one.waiter);  // the update that reads it
    EXPECT_GT(one.waiter, one.instruction);
    const Instruction& update = plan.instructions[one.waiter];
    EXPECT_TRUE(plan.buffers[update.outputs[0].buffer].place.leaf);
  }
  plan.predicted_ms = plan.predicted_keep_all_ms = sum_of_times(plan);
  hide_exchanges(plan, rates);
  EXPECT_EQ(plan.predicted_ms, sum_of_times(plan));
}

// The predicted time with two lanes.
double step_ms(const Rates& rates) {
  Plan plan = planned(rates);
  in_two_lanes(plan);
  plan.predicted_ms = plan.predicted_keep_all_ms = sum_of_times(plan);
  hide_exchanges(plan, rates);
  return plan.predicted_ms;
}

TEST(Exchanges, AnotherLaneHidesThem) {
  const double without = step_ms(with_latency(0.0));
  for (const double latency : {0.01, 0.3, 2.0, 100.0}) {
    SCOPED_TRACE(latency);
    const Rates rates = with_latency(latency);
    Plan plan = planned(rates);
    in_two_lanes(plan);
    const std::vector<Exchange> all = exchanges_of(plan, rates);
    ASSERT_EQ(all.size(), 4u);
    for (const Exchange& one : all) {
      EXPECT_TRUE(plan.runs_beside(plan.instructions[one.instruction]));
      EXPECT_GE(one.exposed_ms, 0.0);
      EXPECT_LE(one.exposed_ms, one.link_ms);
    }
    const double link = sum_of(all, &Exchange::link_ms), sum = sum_of_times(plan);
    const double exposed = sum_of(all, &Exchange::exposed_ms);
    // Computation cannot hide more time than it takes.
    EXPECT_GE(exposed, link - (sum - link));
    EXPECT_LT(exposed, link);
    // The gradient of the first layer comes last, when nothing is left to compute.
    EXPECT_GT(all.back().exposed_ms, 0.0);
    EXPECT_FALSE(all.back().waiter) << "the end of the step waits";
    plan.predicted_ms = sum, plan.predicted_keep_all_ms = sum - 3.0;
    hide_exchanges(plan, rates);
    EXPECT_LT(plan.predicted_ms, sum);
    EXPECT_GE(plan.predicted_ms, sum - link);
    EXPECT_NEAR(plan.predicted_ms - plan.predicted_keep_all_ms, 3.0, 1e-9);
    EXPECT_NEAR(plan.predicted_ms, without + exposed, 1e-6);
  }
}

}  // namespace
}  // namespace ebb::test
