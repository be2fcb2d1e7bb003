#include "ebb/nn/pair_linear.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/error.h"
#include "ebb/program.h"

namespace ebb::nn {
namespace {

constexpr double first_two_of_fours = 0b0011'0011;

// The initial value of a dense layer with half as many inputs, because each output reads half of
// them.
Initial initial(std::int64_t in) {
  return Initial::uniform(in == 0 ? 0.0 : 1.0 / std::sqrt(static_cast<double>(in) / 2.0));
}

std::int64_t fours(const Place& place, std::int64_t in) {
  if (in < 0 || in % 4 != 0)
    throw ValueError(fmt::format(
        "\"{}\": the inputs of a layer with the pattern 2:4 must be a multiple of 4, but are {}",
        place.path, in));
  return in;
}

}  // namespace

PairLinear::PairLinear(Place place, std::int64_t in, std::int64_t out, Bias with_bias)
    : Module(place), in_(fours(place, in)), out_(out) {
  weight = parameter("weight", {out, in / 2}, initial(in));
  if (with_bias == Bias::yes) bias = parameter("bias", {out}, initial(in));
  positions = buffer("positions", positions_type(out, in), first_two_of_fours);
}

Tensor PairLinear::forward(const Tensor& x) { return pair_linear(x, weight, positions, bias); }

void PairLinear::assign(const Tensor& dense) {
  if (!dense || dense.type() != TensorType{{out_, in_}, dtype()})
    throw ShapeError(fmt::format("[assign] \"{}\" takes a matrix {}, but {} came", path(),
                                 to_string(TensorType{{out_, in_}, dtype()}),
                                 dense ? to_string(dense.type()) : "nothing"));
  const std::vector<Tensor> lazy{take_pairs(dense, choose_pairs(dense)), choose_pairs(dense)};
  const std::vector<Tensor> made = eval(lazy);
  weight.assign(made[0]);
  positions.assign(made[1]);
}

}  // namespace ebb::nn
