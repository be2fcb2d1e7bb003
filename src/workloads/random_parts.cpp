#include "workloads/random_parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/draws.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

constexpr std::uint64_t seed_of_parts = 0x7061727473;

std::int64_t count_of(const Parts& parts) {
  return static_cast<std::int64_t>(parts.train.size() + parts.test.size());
}

}  // namespace

// Spreads each class evenly over [0, 1), in random order and from a random start, and holds out the
// items that come first. So the share of each class, rounded up or down, is held out.
Parts random_parts(std::span<const std::int32_t> labels, const std::string& source) {
  const auto count = static_cast<std::int64_t>(labels.size()), held = held_out(count, source);
  data::Draws draws({.seed = seed_of_parts}, 0);
  std::vector<std::int64_t> order(labels.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
  struct Class {
    double size = 0.0, seen = 0.0, start = 0.0;
  };
  std::vector<Class> classes(
      static_cast<std::size_t>(*std::max_element(labels.begin(), labels.end())) + 1);
  for (const std::int32_t label : labels) ++classes[static_cast<std::size_t>(label)].size;
  for (Class& each : classes) each.start = draws.uniform();
  std::vector<std::pair<double, std::int64_t>> places;  // places, with their items
  for (const std::int64_t item : order) {
    Class& own = classes[static_cast<std::size_t>(labels[static_cast<std::size_t>(item)])];
    places.emplace_back((own.seen++ + own.start) / own.size, item);
  }
  std::sort(places.begin(), places.end());
  Parts parts;
  for (std::int64_t i = 0; i < count; ++i)
    (i < held ? parts.test : parts.train).push_back(places[static_cast<std::size_t>(i)].second);
  std::sort(parts.train.begin(), parts.train.end());
  return parts;
}

Parts random_parts(std::int64_t count, const std::string& source) {
  return random_parts(std::vector<std::int32_t>(static_cast<std::size_t>(count)), source);
}

std::string train_source(const Parts& parts, const std::string& source, const std::string& items) {
  return fmt::format("{}, all but {} of its {} {}, drawn at random", source, parts.test.size(),
                     count_of(parts), items);
}

std::string test_source(const Parts& parts, const std::string& source, const std::string& items) {
  return fmt::format("{}, {} of its {} {}, drawn at random", source, parts.test.size(),
                     count_of(parts), items);
}

}  // namespace ebb::workloads
