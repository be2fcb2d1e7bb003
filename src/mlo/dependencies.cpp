#include "ebb/mlo/dependencies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ebb/error.h"

namespace ebb::mlo {
namespace {

using Names = std::vector<std::string>;

int number_of(const Names& names, const std::string& name, std::string_view where) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw ValueError(fmt::format("{}: there is no problem \"{}\"; there are: {}", where, name,
                                 fmt::join(names, ", ")));
  return static_cast<int>(found - names.begin());
}

// Calls visit(from, to) for every edge.
template <class Visit>
void for_each_edge(const Names& names, const Edges& edges, std::string_view kind,
                   const Visit& visit) {
  std::vector<std::pair<int, int>> seen;
  for (const auto& [from, targets] : edges)
    for (const std::string& to : targets) {
      const std::pair edge{number_of(names, from, kind), number_of(names, to, kind)};
      if (std::find(seen.begin(), seen.end(), edge) != seen.end())
        throw ValueError(fmt::format("{}: \"{}\" to \"{}\" is said twice", kind, from, to));
      seen.push_back(edge);
      visit(edge.first, edge.second);
    }
}

// Throws if l2u leads from a problem back to itself, and names the cycle.
void refuse_circles(const Names& names, const std::vector<std::vector<int>>& uppers) {
  std::vector<int> trail;
  std::vector<bool> done(names.size());
  const auto visit = [&](const auto& self, int problem) -> void {
    const auto before = std::find(trail.begin(), trail.end(), problem);
    if (before != trail.end()) {
      std::string circle;
      for (auto at = before; at != trail.end(); ++at)
        circle += fmt::format("\"{}\" → ", names[static_cast<std::size_t>(*at)]);
      throw ValueError(fmt::format("l2u goes in a circle: {}\"{}\"", circle,
                                   names[static_cast<std::size_t>(problem)]));
    }
    if (done[static_cast<std::size_t>(problem)]) return;
    trail.push_back(problem);
    for (int upper : uppers[static_cast<std::size_t>(problem)]) self(self, upper);
    trail.pop_back();
    done[static_cast<std::size_t>(problem)] = true;
  };
  for (int i = 0; i < static_cast<int>(names.size()); ++i) visit(visit, i);
}

// Every path from `at` up to `goal`, each as the problems on it from below to above.
void climb(int at, int goal, const std::vector<std::vector<int>>& uppers, LevelPath& trail,
           std::vector<LevelPath>& found) {
  trail.push_back(at);
  if (at == goal)
    found.push_back(trail);
  else
    for (int upper : uppers[static_cast<std::size_t>(at)]) climb(upper, goal, uppers, trail, found);
  trail.pop_back();
}

}  // namespace

LevelGraph::LevelGraph(const Names& names, const Dependencies& dependencies)
    : uppers(names.size()), lowers(names.size()), paths(names.size()) {
  if (names.empty()) throw ValueError("a multilevel problem needs at least one problem");
  for (std::size_t i = 0; i < names.size(); ++i)
    if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i))
      throw ValueError(fmt::format("two problems are named \"{}\"", names[i]));
  for_each_edge(names, dependencies.l2u, "l2u", [&](int lower, int upper) {
    uppers[static_cast<std::size_t>(lower)].push_back(upper);
    lowers[static_cast<std::size_t>(upper)].push_back(lower);
  });
  refuse_circles(names, uppers);
  for_each_edge(names, dependencies.u2l, "u2l", [&](int upper, int lower) {
    const std::string &above = names[static_cast<std::size_t>(upper)],
                      &below = names[static_cast<std::size_t>(lower)];
    std::vector<LevelPath> found;
    LevelPath trail;
    if (upper != lower) climb(lower, upper, uppers, trail, found);
    if (found.empty())
      throw ValueError(
          fmt::format("u2l: \"{0}\" is above \"{1}\", but l2u has no way from \"{1}\" up to "
                      "\"{0}\"",
                      above, below));
    for (LevelPath& path : found) {
      std::reverse(path.begin(), path.end());
      path.push_back(upper);
      paths[static_cast<std::size_t>(upper)].push_back(std::move(path));
    }
  });
  for (int i = 0; i < static_cast<int>(names.size()); ++i)
    if (lowers[static_cast<std::size_t>(i)].empty()) leaves.push_back(i);
}

}  // namespace ebb::mlo
