#include "ops/group/group.h"

#include <gtest/gtest.h>

#include "ops/adam/adam.h"
#include "ops/lion/lion.h"
#include "ops/quantised_adam/quantised_adam.h"
#include "ops/reduce/reduce.h"
#include "ops/sgd/sgd.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using Tensors = std::vector<Tensor>;

// One node for nodes of one op.
Tensors grouped(const std::vector<Tensors>& calls) {
  const Node& first = *calls[0][0].node();
  GroupAttributes attributes{
      {}, static_cast<int>(first.inputs().size()), static_cast<int>(first.outputs().size())};
  Tensors inputs;
  for (const Tensors& outputs : calls) {
    const Node& node = *outputs[0].node();
    attributes.calls.push_back(node.attributes());
    inputs.insert(inputs.end(), node.inputs().begin(), node.inputs().end());
  }
  return apply(*first.op().group(), std::move(inputs), std::move(attributes));
}

TEST(Group, SumsOfSquares) {
  check({"sums of squares",
         {SampleInput::real({3, 4}), SampleInput::real({5})},
         [](const Tensors& x) {
           return grouped({{sum_squares(x[0])}, {sum_squares(x[1])}});
         }});
}

DType computed_in(const Tensor& x) { return x.dtype() == f64 ? f64 : f32; }

TEST(Group, UpdatesOfAdam) {
  check({"adam",
         {SampleInput::real({3, 4}), SampleInput::real({3, 4}), SampleInput::real({5}),
          SampleInput::real({5})},
         [](const Tensors& x) {
           const auto step = [&](const Tensor& p, const Tensor& g) {
             const DType dtype = computed_in(p);
             const AdamResult r =
                 adam_update(p, g, full(p.shape(), 0.25, dtype), full(p.shape(), 0.5, dtype),
                             full({}, 0.05, f64), full({}, 3.0, f64), full({}, 0.5, dtype),
                             {.eps = 1e-3, .weight_decay = 0.1});
             return Tensors{r.parameter, r.mean, r.square};
           };
           return grouped({step(x[0], x[1]), step(x[2], x[3])});
         }});
}

TEST(Group, UpdatesOfSgd) {
  check({"sgd",
         {SampleInput::real({3, 4}), SampleInput::real({3, 4}), SampleInput::real({5}),
          SampleInput::real({5})},
         [](const Tensors& x) {
           const auto step = [&](const Tensor& p, const Tensor& g) {
             const DType dtype = computed_in(p);
             const SgdResult r =
                 sgd_update(p, g, full(p.shape(), 0.25, dtype), full({}, 0.05, f64),
                            full({}, 0.5, dtype), {.momentum = 0.9, .nesterov = true});
             return Tensors{r.parameter, r.velocity};
           };
           return grouped({step(x[0], x[1]), step(x[2], x[3])});
         }});
}

TEST(Group, UpdatesOfLion) {
  // Signs have steps, away from which nothing depends on the gradient.
  Sample sample{"lion",
                {SampleInput::fixed({3, 4}, 0.5, 1.5), SampleInput::fixed({3, 4}, 0.5, 1.5),
                 SampleInput::fixed({5}, 0.5, 1.5), SampleInput::fixed({5}, 0.5, 1.5)},
                [](const Tensors& x) {
                  const auto step = [&](const Tensor& p, const Tensor& g) {
                    const DType dtype = computed_in(p);
                    const LionResult r =
                        lion_update(p, g, full(p.shape(), 0.25, dtype), full({}, 0.05, f64),
                                    full({}, 0.5, dtype), {.weight_decay = 0.1});
                    return Tensors{r.parameter, r.mean};
                  };
                  return grouped({step(x[0], x[1]), step(x[2], x[3])});
                }};
  check(sample);
}

TEST(Group, UpdatesOfQuantisedAdam) {
  Sample sample{
      "quantised_adam",
      {SampleInput::fixed({3, 4}, 0.5, 1.5), SampleInput::fixed({3, 4}, 0.5, 1.5),
       SampleInput::fixed({5}, 0.5, 1.5), SampleInput::fixed({5}, 0.5, 1.5)},
      [](const Tensors& x) {
        const auto step = [&](const Tensor& p, const Tensor& g) {
          const QuantisedTypes types = quantised_types(p.shape().elements(), 8);
          const auto moment = [&](int code) {
            return QuantisedMoment{full(types.codes.shape, code, u8),
                                   full(types.absmax.shape, 0.5, f32)};
          };
          const QuantisedAdamResult r = quantised_adam_update(
              p, g, moment(zero_code(8)), moment(0), full({}, 0.05, f64), full({}, 3.0, f64),
              full({}, 0.5, computed_in(p)), {.adam = {.eps = 1e-3}, .bits = 8});
          return Tensors{r.parameter, r.mean.codes, r.mean.absmax, r.square.codes, r.square.absmax};
        };
        return grouped({step(x[0], x[1]), step(x[2], x[3])});
      }};
  sample.low_precision = false;  // codes jump where another precision rounds otherwise
  check(sample);
}

TEST(Group, ErrorsNameTheCall) {
  const PathScope path("norm");
  expect_error(
      [] {
        const Tensor x = zeros({2}, b8);
        (void)apply(sum_squares_group_op(), {zeros({2}), x},
                    GroupAttributes{{ReduceAttributes{{0}}, ReduceAttributes{{0}}}, 1, 1});
      },
      {"[sum_squares]", "norm", "bool"});
  expect_error(
      [] {
        (void)apply(sum_squares_group_op(), {zeros({2})},
                    GroupAttributes{{ReduceAttributes{{0}}, ReduceAttributes{{0}}}, 1, 1});
      },
      {"[sum_squares_group]", "norm", "calls"});
}

}  // namespace
}  // namespace ebb::test
