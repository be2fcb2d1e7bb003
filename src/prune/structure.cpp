#include "ebb/prune/structure.h"

#include <map>
#include <set>
#include <utility>

#include "ebb/error.h"
#include "ebb/nn/adapt.h"
#include "prune/axis_trace.h"
#include "prune/blocks.h"
#include "train/programs_by_shape.h"

namespace ebb::prune {
namespace {

struct Found {
  Group group;
  std::set<std::pair<std::size_t, int>> axes;  // (variable, axis)
};

void add_index(Group& group, std::size_t variable, int axis, std::int64_t index) {
  if (group.parts.empty() || group.parts.back().variable != variable ||
      group.parts.back().axis != axis)
    group.parts.push_back({variable, axis, {}});
  std::vector<Range>& ranges = group.parts.back().ranges;
  if (!ranges.empty() && ranges.back().end == index)
    ++ranges.back().end;
  else
    ranges.push_back({index, index + 1});
}

Kind kind_of(std::uint8_t traits) {
  if (traits & head_trait) return Kind::heads;
  return traits & channel_trait ? Kind::channels : Kind::neurons;
}

struct PlaceOfGroup {
  std::size_t dimension = 0;
  int group = 0;
};

void find_dimensions(AxisTrace& trace, Structure& s) {
  Classes& classes = trace.classes();
  std::map<Label, Found> found;  // by class; a class has the label of its first index
  for (std::size_t v = 0; v < s.variables.size(); ++v) {
    const Variable& variable = s.variables[v].variable;
    if (!trace.has(variable)) continue;  // the loss does not use it
    for (int axis = 0; axis < variable.rank(); ++axis) {
      const AxisLabels& labels = trace.labels(variable, axis);
      for (std::size_t i = 0; i < labels.size(); ++i) {
        const Label root = classes.find(labels[i]);
        if (root == Classes::fixed) continue;
        Found& entry = found[root];
        add_index(entry.group, v, axis, static_cast<std::int64_t>(i));
        entry.axes.insert({v, axis});
      }
    }
  }
  // Groups that take indices from the same axes form a dimension.
  std::map<std::pair<Kind, std::set<std::pair<std::size_t, int>>>, std::size_t> dimensions;
  std::map<Label, PlaceOfGroup> places;
  for (auto& [root, entry] : found) {
    const std::uint8_t traits = classes.traits(root);
    // Groups can be removed only if one variable makes the indices and another one sums over them:
    // the sum then has fewer terms. Statistics over the axis would change for all remaining
    // indices.
    if (!(traits & summed_trait) || (traits & normalised_trait) || entry.axes.size() < 2) continue;
    const Kind kind = kind_of(traits);
    const auto [at, added] = dimensions.try_emplace({kind, entry.axes}, s.dimensions.size());
    if (added) {
      std::vector<std::string_view> paths;
      for (const auto& [variable, axis] : entry.axes) paths.push_back(s.variables[variable].path);
      s.dimensions.push_back({.kind = kind, .path = common_path(paths)});
    }
    Dimension& dimension = s.dimensions[at->second];
    places[root] = {at->second, static_cast<int>(dimension.groups.size())};
    dimension.groups.push_back(std::move(entry.group));
  }
  for (const SummedAxis& summed : trace.summed()) {
    const AxisLabels& labels = trace.labels(summed.value, summed.axis);
    std::map<std::size_t, Reading> readings;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto place = places.find(classes.find(labels[i]));
      if (place == places.end()) continue;
      Reading& reading = readings[place->second.dimension];
      if (reading.group_of.empty())
        reading = {summed.value, summed.axis, std::vector<int>(labels.size(), -1)};
      reading.group_of[i] = place->second.group;
    }
    for (auto& [dimension, reading] : readings)
      s.dimensions[dimension].readings.push_back(std::move(reading));
  }
}

}  // namespace

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::heads:
      return "heads";
    case Kind::channels:
      return "channels";
    case Kind::neurons:
      break;
  }
  return "neurons";
}

Structure trace_blocks(nn::ModuleBase& model, const LossFunction& loss,
                       const std::vector<TensorType>& types) {
  if (nn::has_pairs(model))
    throw ValueError(
        "prune: weights that are stored without the zeros of their pattern 2:4 cannot be pruned "
        "further; prune the model that they were made from");
  Structure s;
  s.variables = model.parameters();
  for (const nn::NamedVariable& buffer : model.buffers()) s.variables.push_back(buffer);
  {
    const TraceScope fresh;
    const nn::ForwardScope forward(nn::Mode::evaluate);
    const Batch batch = placeholders(types, model.device());
    s.inputs = batch.tensors;
    s.loss = loss(batch);
  }
  if (!s.loss || s.loss.shape().elements() != 1)
    throw ShapeError("prune: the loss must be a single number");
  Graph graph;
  graph.outputs = {s.loss};
  find_blocks(topological_order(graph), s);
  return s;
}

Structure find_structure(nn::ModuleBase& model, const LossFunction& loss,
                         const std::vector<TensorType>& types) {
  Structure s = trace_blocks(model, loss, types);
  Graph graph;
  graph.outputs = {s.loss};
  AxisTrace trace(topological_order(graph), graph.outputs);
  find_dimensions(trace, s);
  return s;
}

}  // namespace ebb::prune
