#include "ebb/prune/gradual.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "ebb/error.h"

namespace ebb::prune {
namespace {

// The schedule of masks is used.
SparseTraining as_masks(const GradualPruning& g) {
  SparseTraining masks;
  masks.schedule = g.schedule, masks.sparsity = g.share;
  masks.from = g.from, masks.until = g.until, masks.every = g.every;
  return masks;
}

// Names that do not change while groups are removed: several dimensions may have the same path.
std::vector<std::string> names_of(const Structure& s) {
  std::vector<std::string> names;
  std::map<std::string, int> uses;
  for (const Dimension& d : s.dimensions) {
    const std::string base = fmt::format("{} of {}", name(d.kind), d.path);
    names.push_back(fmt::format("{} ({})", base, ++uses[base]));
  }
  return names;
}

Scores equal_scores(const Structure& s) {
  Scores scores;
  for (const Dimension& d : s.dimensions) scores.groups.emplace_back(d.groups.size(), 0.0);
  scores.blocks.assign(s.blocks.size(), 0.0);
  return scores;
}

}  // namespace

std::optional<double> GradualPruning::share_after(std::int64_t steps) const {
  return as_masks(*this).share_after(steps);
}

void GradualPruning::check() const {
  const auto fail = [](const std::string& what) { throw ValueError("GradualPruning: " + what); };
  if (!(share > 0.0 && share < 1.0))
    fail(fmt::format("the share to remove must be greater than 0 and less than 1, but is {}",
                     share));
  if (every < 1) fail(fmt::format("groups go every so many steps, at least 1, not {}", every));
  if (from < 0) fail(fmt::format("groups go after {} steps, which is before the first", from));
  if (schedule == MaskSchedule::constant && from == 0)
    fail("a constant schedule cuts after `from` steps, at least 1");
  if (schedule == MaskSchedule::cubic && until <= from)
    fail(fmt::format("the last groups go after {} steps, which must come after step {}", until,
                     from));
}

Shrinking::Shrinking(const Structure& dense, StructuredOptions options)
    : options_(std::move(options)) {
  options_.keep = 1.0;
  (void)choose(dense, equal_scores(dense), options_);  // refuses kinds that are not there
  const std::vector<std::string> names = names_of(dense);
  for (std::size_t d = 0; d < dense.dimensions.size(); ++d) {
    const Dimension& dimension = dense.dimensions[d];
    if (!options_.kinds.empty() && !options_.kinds.contains(dimension.kind)) continue;
    if (!dimension.path.starts_with(options_.under)) continue;
    sizes_[names[d]] = static_cast<std::int64_t>(dimension.groups.size());
  }
  if (sizes_.empty())
    throw ValueError("prune: the model has no heads, neurons or channels that can be removed");
}

Removal Shrinking::removal(const Structure& now, const Scores& scores, double share) const {
  Removal removal;
  removal.groups.resize(now.dimensions.size());
  const std::vector<std::string> names = names_of(now);
  for (std::size_t d = 0; d < now.dimensions.size(); ++d) {
    const auto dense = sizes_.find(names[d]);
    if (dense == sizes_.end()) continue;
    const auto size = static_cast<std::int64_t>(now.dimensions[d].groups.size());
    const std::int64_t multiple = now.dimensions[d].kind == Kind::heads ? 1 : options_.multiple;
    const std::int64_t kept = kept_of(dense->second, 1.0 - share, multiple);
    removal.groups[d] = lowest(scores.groups.at(d), std::max<std::int64_t>(0, size - kept));
  }
  // A dimension with one group left has no choice and is no longer listed.
  const std::set<std::string> there(names.begin(), names.end());
  for (const auto& [name, size] : sizes_)
    if (!there.contains(name) && kept_of(size, 1.0 - share, 1) > 1)
      throw ValueError(
          fmt::format("prune: the {} are not in the smaller model, where {} of {} are to stay",
                      name, kept_of(size, 1.0 - share, 1), size));
  return removal;
}

Removal Shrinking::any_removal(const Structure& now, double share) const {
  return removal(now, equal_scores(now), share);
}

}  // namespace ebb::prune
