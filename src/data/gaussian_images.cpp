#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/draws.h"
#include "data/items.h"
#include "ebb/data/generated.h"

namespace ebb::data {
namespace {

constexpr std::int64_t waves = 4;  // half periods along an axis, from none to three
constexpr std::uint64_t prototype_salt = 0x70726F746Full, noise_salt = 0x6E6F697365ull;

// With orthogonal prototypes of norm d and unit noise, the scores <x, p_c> / d are independent
// normal numbers of deviation 1 and mean d for the right class, 0 for the others. The right one is
// largest with probability ∫ φ(z - d) Φ(z)^(C-1) dz. The integrand is smooth and vanishes at both
// ends, where the trapezoid rule converges faster than any power of the step.
double accuracy_of_largest(double d, std::int64_t classes) {
  constexpr double step = 1.0 / 256, reach = 12;
  double sum = 0;
  for (double u = -reach; u <= reach; u += step) {
    const double right = std::exp(-u * u / 2) / std::sqrt(2 * std::numbers::pi);
    const double below = std::erfc(-(u + d) / std::numbers::sqrt2) / 2;
    sum += right * std::pow(below, static_cast<double>(classes - 1));
  }
  return std::min(1.0, sum * step);
}

double normal(Draws& draws) { return static_cast<double>(draws.normals()[0]); }

// A random mixture of cosine waves in each channel.
std::vector<double> smooth_field(const GaussianImageOptions& o, Draws& draws) {
  std::vector<double> field(static_cast<std::size_t>(o.channels * o.height * o.width));
  for (std::int64_t c = 0; c < o.channels; ++c)
    for (std::int64_t v = 0; v < std::min(waves, o.height); ++v)
      for (std::int64_t u = 0; u < std::min(waves, o.width); ++u) {
        const double weight = normal(draws);
        double* at = field.data() + c * o.height * o.width;
        for (std::int64_t y = 0; y < o.height; ++y)
          for (std::int64_t x = 0; x < o.width; ++x)
            *at++ += weight *
                     std::cos(std::numbers::pi * static_cast<double>(v) *
                              (static_cast<double>(y) + 0.5) / static_cast<double>(o.height)) *
                     std::cos(std::numbers::pi * static_cast<double>(u) *
                              (static_cast<double>(x) + 0.5) / static_cast<double>(o.width));
      }
  return field;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// An item's own numbers: its label first, then its noise.
Draws draws_of(const GaussianImageOptions& options, std::int64_t item) {
  return Draws({mix(options.seed ^ noise_salt), 0}, static_cast<std::uint64_t>(item));
}
std::int32_t label_from(const GaussianImageOptions& options, Draws& draws) {
  return static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(options.classes)));
}

}  // namespace

GaussianImages::GaussianImages(const GaussianImageOptions& options) : options_(options) {
  constexpr std::string_view who = "GaussianImages";
  const auto& o = options_;
  constexpr std::int64_t most_pixels = 1 << 20;
  require(o.channels >= 1 && o.channels <= most_pixels && o.height >= 1 &&
              o.height <= most_pixels / o.channels && o.width >= 1 &&
              o.width <= most_pixels / o.channels / o.height,
          who,
          fmt::format("images of 1 to {} values are expected, but ({}, {}, {}) came", most_pixels,
                      o.channels, o.height, o.width));
  // Twice as many waves as classes: the fields are then far from dependent.
  const std::int64_t room = o.channels * std::min(waves, o.height) * std::min(waves, o.width) / 2;
  require(o.classes >= 1 && o.classes <= std::max<std::int64_t>(room, 1), who,
          fmt::format("images of this size have room for 1 to {} smooth classes, but {} came",
                      std::max<std::int64_t>(room, 1), o.classes));
  require(std::isfinite(o.separation) && o.separation > 0, who,
          fmt::format("a positive separation is expected, but {} came", o.separation));
  require(o.images >= 1, who, fmt::format("at least one image is expected, but {} came", o.images));
  std::vector<std::vector<double>> orthonormal;
  for (std::int64_t c = 0; c < o.classes; ++c) {
    Draws draws({mix(o.seed ^ prototype_salt), 0}, static_cast<std::uint64_t>(c));
    std::vector<double> field = smooth_field(o, draws);
    for (int twice = 0; twice < 2; ++twice)  // the second time removes what rounding left
      for (const std::vector<double>& other : orthonormal) {
        const double along = dot(field, other);
        for (std::size_t i = 0; i < field.size(); ++i) field[i] -= along * other[i];
      }
    const double norm = std::sqrt(dot(field, field));
    for (double& value : field) value /= norm;
    for (double value : field) prototypes_.push_back(static_cast<float>(value * o.separation));
    orthonormal.push_back(std::move(field));
  }
  best_accuracy_ = accuracy_of_largest(o.separation, o.classes);
}

std::span<const float> GaussianImages::prototype(std::int64_t of_class) const {
  require(of_class >= 0 && of_class < options_.classes, "GaussianImages",
          fmt::format("class {} was asked for, but there are {}", of_class, options_.classes));
  const std::size_t each = prototypes_.size() / static_cast<std::size_t>(options_.classes);
  return std::span(prototypes_).subspan(static_cast<std::size_t>(of_class) * each, each);
}

std::vector<TensorType> GaussianImages::types(std::int64_t batch) const {
  return {{{batch, options_.channels, options_.height, options_.width}, f32}, {{batch}, i32}};
}

std::int64_t GaussianImages::label(std::int64_t item) const {
  check_items("GaussianImages", std::span(&item, 1), size());
  Draws draws = draws_of(options_, item);
  return label_from(options_, draws);
}

Batch GaussianImages::batch(std::span<const std::int64_t> items, RandomState) const {
  check_items("GaussianImages", items, size());
  const std::size_t each = prototype(0).size();
  std::vector<float> x(items.size() * each);
  std::vector<std::int32_t> y(items.size());
  for (std::size_t row = 0; row < items.size(); ++row) {
    Draws draws = draws_of(options_, items[row]);
    y[row] = label_from(options_, draws);
    const std::span<const float> mean = prototype(y[row]);
    float* to = x.data() + row * each;
    for (std::size_t i = 0; i < each; i += 2) {
      const auto [first, second] = draws.normals();
      to[i] = mean[i] + first;
      if (i + 1 < each) to[i + 1] = mean[i + 1] + second;
    }
  }
  const std::vector<TensorType> type = types(static_cast<std::int64_t>(items.size()));
  return {{Tensor::from(x, type[0].shape), Tensor::from(y, type[1].shape)}};
}

}  // namespace ebb::data
