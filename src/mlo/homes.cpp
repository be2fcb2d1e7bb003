#include "mlo/homes.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "ebb/node.h"
#include "plan/offload/candidates.h"

namespace ebb::mlo {
namespace {

struct Movable {
  std::uint64_t node = 0;
  Bytes bytes;
  double uses = 0.0;  // by programs, per step of the engine
  Tier tier = Tier::device;
};

// The variables that the planner could move if this graph were alone.
std::unordered_set<std::uint64_t> movable_in(const Graph& graph, const CompileOptions& compile,
                                             const OffloadOptions& offload) {
  PlanOptions options = compile.plan;
  options.offload = offload;
  options.offload.activations = false;
  const planning::Planner planner(run_passes(graph, compile.passes.value_or(all_pass_names())),
                                  options);
  std::unordered_set<std::uint64_t> found;
  for (const planning::Candidate& candidate : planning::candidates(planner))
    found.insert(candidate.variable->id());
  return found;
}

// Variables that every program using them can fetch, as far as the tiers have room. Those used
// least often come first, and among these the largest.
std::vector<Movable> movable(const std::vector<std::unique_ptr<Level>>& levels,
                             const OffloadOptions& offload) {
  std::map<std::uint64_t, Movable> all;
  for (const auto& level : levels) {
    level->trace_once();
    for (const Variable& variable : level->variables())
      all[variable.node()->id()] = {variable.node()->id(), variable.type().bytes()};
  }
  std::unordered_set<std::uint64_t> refused;
  for (const auto& level : levels) {
    // Rolling back copies whole variables to other variables.
    if (level->keeps_snapshot())
      for (const Variable& variable : level->variables()) refused.insert(variable.node()->id());
    for (const Graph& graph : level->graphs()) {
      const std::unordered_set<std::uint64_t> here = movable_in(graph, level->compile(), offload);
      for (const auto& node : topological_order(graph)) {
        const auto found = all.find(node->id());
        if (found == all.end()) continue;
        found->second.uses += level->runs_for_each();
        if (!here.contains(node->id())) refused.insert(node->id());
      }
    }
  }
  std::vector<Movable> result;
  for (const auto& [node, one] : all)
    if (one.uses > 0.0 && !refused.contains(node)) result.push_back(one);
  std::stable_sort(result.begin(), result.end(), [](const Movable& a, const Movable& b) {
    return std::tuple(a.uses, b.bytes) < std::tuple(b.uses, a.bytes);
  });
  ByTier<Bytes> room = offload.budgets;
  std::erase_if(result, [&](Movable& one) {
    const Bytes size = round_up(one.bytes, file_alignment);
    one.tier = room[Tier::host] >= size ? Tier::host : Tier::disk;
    if (room[one.tier] < size) return true;
    room[one.tier] -= size;
    return false;
  });
  return result;
}

Homes first(const std::vector<Movable>& some, std::size_t count) {
  Homes homes;
  for (std::size_t i = 0; i < count; ++i) homes[some[i].node] = some[i].tier;
  return homes;
}

}  // namespace

Homes most_homes(const std::vector<std::unique_ptr<Level>>& levels, const OffloadOptions& offload) {
  const std::vector<Movable> all = movable(levels, offload);
  return first(all, all.size());
}

Homes settled_homes(const std::vector<std::unique_ptr<Level>>& levels,
                    const OffloadOptions& offload) {
  const auto kept_with = [&](const Homes& homes) {
    for (const auto& level : levels) level->set_homes(homes);
    return std::all_of(levels.begin(), levels.end(),
                       [](const auto& level) { return level->keeps_budget(); });
  };
  if (kept_with({})) return {};
  const std::vector<Movable> all = movable(levels, offload);
  std::size_t too_few = 0, enough = all.size();
  while (enough - too_few > 1) {
    const std::size_t middle = (too_few + enough) / 2;
    (kept_with(first(all, middle)) ? enough : too_few) = middle;
  }
  Homes homes = first(all, enough);
  for (const auto& level : levels) level->set_homes(homes);
  return homes;
}

}  // namespace ebb::mlo
