#include "ebb/prune/remove.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "ebb/error.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "prune/slices.h"

namespace ebb::prune {
namespace {

std::vector<std::byte> copied_bytes(const Tensor& value) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(value.type().bytes().count));
  const Tensor held = value.node()->storage() ? value : eval(value);
  held.node()->storage()->read(bytes);
  return bytes;
}

// The run of elements behind one index of an axis, and the runs before it.
struct AxisRuns {
  std::size_t outer = 1, size = 1, run = 1;
  AxisRuns(const TensorType& type, int axis) {
    for (int i = 0; i < axis; ++i) outer *= static_cast<std::size_t>(type.shape[i]);
    size = static_cast<std::size_t>(type.shape[axis]);
    for (int i = axis + 1; i < type.shape.rank(); ++i)
      run *= static_cast<std::size_t>(type.shape[i]);
    run *= static_cast<std::size_t>(size_of(type.dtype).count);
  }
};

// A block's path once the removed blocks before it in its list are gone.
std::string renumbered(const Structure& s, const Removal& removal, std::size_t block) {
  const auto list_of = [&](std::size_t b) {
    const std::string& path = s.blocks[b].path;
    return path.substr(0, path.rfind('.') + 1);
  };
  const std::string list = list_of(block);
  std::int64_t number = 0;
  const std::string& path = s.blocks[block].path;
  std::from_chars(path.data() + list.size(), path.data() + path.size(), number);
  for (const std::size_t b : removal.blocks)
    if (b < block && list_of(b) == list) --number;
  return fmt::format("{}{}", list, number);
}

}  // namespace

bool Removal::empty() const {
  return blocks.empty() && std::all_of(groups.begin(), groups.end(),
                                       [](const std::set<int>& g) { return g.empty(); });
}

std::set<int> lowest(const std::vector<double>& scores, std::int64_t count) {
  if (!std::all_of(scores.begin(), scores.end(), [](double s) { return std::isfinite(s); }))
    throw ValueError("prune: a score is not finite: the model or its gradients are not");
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return scores[static_cast<std::size_t>(a)] < scores[static_cast<std::size_t>(b)];
  });
  return {order.begin(), order.begin() + count};
}

std::int64_t kept_of(std::int64_t size, double keep, std::int64_t multiple) {
  if (!(keep > 0.0 && keep <= 1.0))
    throw ValueError(
        fmt::format("prune: the share to keep must be above 0 and at most 1, but is {}", keep));
  if (multiple < 1)
    throw ValueError(fmt::format("prune: sizes are multiples of 1 or more, but {} came", multiple));
  const double wanted = keep * static_cast<double>(size) / static_cast<double>(multiple);
  const auto kept = static_cast<std::int64_t>(std::llround(wanted)) * multiple;
  return std::clamp(kept, std::min(multiple, size), size);
}

void set_to_zero(const Structure& s, const Removal& removal) {
  std::set<std::size_t> whole;
  for (const std::size_t b : removal.blocks)
    whole.insert(s.blocks.at(b).variables.begin(), s.blocks.at(b).variables.end());
  for (std::size_t v = 0; v < s.variables.size(); ++v) {
    const auto axes = indices_that_go(s, removal, v);
    if (axes.empty() && !whole.contains(v)) continue;
    Variable variable = s.variables[v].variable;
    std::vector<std::byte> bytes = copied_bytes(variable);
    if (whole.contains(v)) std::fill(bytes.begin(), bytes.end(), std::byte{0});
    for (const auto& [axis, goes] : axes) {
      const AxisRuns runs(variable.type(), axis);
      for (std::size_t o = 0; o < runs.outer; ++o)
        for (std::size_t i = 0; i < runs.size; ++i)
          if (goes[i]) std::memset(bytes.data() + (o * runs.size + i) * runs.run, 0, runs.run);
    }
    variable.assign_bytes(bytes);
  }
}

GoingIndices indices_that_go(const Structure& s, const Removal& removal, std::size_t variable) {
  GoingIndices result;
  for (std::size_t d = 0; d < removal.groups.size(); ++d)
    for (const int g : removal.groups[d])
      for (const Part& part : s.dimensions.at(d).groups.at(static_cast<std::size_t>(g)).parts) {
        if (part.variable != variable) continue;
        auto& axis = result[part.axis];
        axis.resize(static_cast<std::size_t>(s.variables[variable].variable.shape()[part.axis]));
        for (const Range& range : part.ranges)
          std::fill(axis.begin() + range.begin, axis.begin() + range.end, true);
      }
  return result;
}

Tensor sliced(const Tensor& value, const GoingIndices& axes) {
  std::vector<std::byte> bytes = copied_bytes(value);
  TensorType type = value.type();
  for (const auto& [axis, goes] : axes) {
    const AxisRuns runs(type, axis);
    std::byte* to = bytes.data();  // kept runs move forward only
    for (std::size_t o = 0; o < runs.outer; ++o)
      for (std::size_t i = 0; i < runs.size; ++i)
        if (!goes[i]) {
          std::memmove(to, bytes.data() + (o * runs.size + i) * runs.run, runs.run);
          to += runs.run;
        }
    type.shape[axis] -= std::count(goes.begin(), goes.end(), true);
    bytes.resize(static_cast<std::size_t>(to - bytes.data()));
  }
  return Tensor::from_bytes(bytes, type);
}

Tensor without(const Structure& s, const Removal& removal, std::size_t v) {
  return sliced(s.variables.at(v).variable, indices_that_go(s, removal, v));
}

std::string path_without(const Structure& s, const Removal& removal, std::size_t v) {
  const std::string& path = s.variables.at(v).path;
  for (std::size_t b = 0; b < s.blocks.size(); ++b) {
    const std::string& block = s.blocks[b].path;
    if (!path.starts_with(block + ".")) continue;
    if (removal.blocks.contains(b)) return {};
    return renumbered(s, removal, b) + path.substr(block.size());
  }
  return path;
}

void copy_kept(const Structure& s, const Removal& removal, const nn::ModuleBase& smaller,
               Release release) {
  std::map<std::string, std::size_t> sources;
  for (std::size_t v = 0; v < s.variables.size(); ++v)
    if (std::string path = path_without(s, removal, v); !path.empty()) sources[std::move(path)] = v;
  std::vector<nn::NamedVariable> targets = smaller.parameters();
  for (const nn::NamedVariable& buffer : smaller.buffers()) targets.push_back(buffer);
  for (nn::NamedVariable& target : targets) {
    const auto source = sources.find(target.path);
    if (source == sources.end())
      throw ValueError(fmt::format("prune: the dense model has nothing for \"{}\"", target.path));
    const Tensor value = without(s, removal, source->second);
    if (value.type() != target.variable.type())
      throw ShapeError(fmt::format("prune: \"{}\" is {} in the smaller model, but {} remains",
                                   target.path, to_string(target.variable.type()),
                                   to_string(value.type())));
    if (release == Release::yes) s.variables[source->second].variable.node()->set_storage(nullptr);
    target.variable.assign(value);
  }
}

}  // namespace ebb::prune
