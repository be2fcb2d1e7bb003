#include "ebb/prune/score.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <set>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/program.h"

namespace ebb::prune {
namespace {

constexpr std::string_view score_names[] = {"magnitude", "taylor", "activation"};

using VariableAxis = std::pair<std::size_t, int>;
using AxisSums = std::map<VariableAxis, std::vector<double>>;  // by index of the axis

// The axes that groups take indices from. Variables that only blocks use have no axis.
constexpr int no_axis = -1;
std::set<VariableAxis> used_axes(const Structure& s) {
  std::set<VariableAxis> result;
  std::set<std::size_t> covered;
  for (const Dimension& d : s.dimensions)
    for (const Part& part : d.groups.front().parts) {
      result.insert({part.variable, part.axis});
      covered.insert(part.variable);
    }
  for (const Block& block : s.blocks)
    for (const std::size_t v : block.variables)
      if (!covered.contains(v)) result.insert({v, no_axis});
  return result;
}

Axes all_but(int axis, int rank) {
  Axes axes;
  for (int i = 0; i < rank; ++i)
    if (i != axis) axes.push_back(i);
  return axes;
}

// An empty list of axes would mean all of them.
Tensor summed(const Tensor& x, int axis) {
  if (axis == no_axis) return reshape(sum(x), {1});
  return x.rank() == 1 ? x : sum(x, all_but(axis, x.rank()));
}

double total(const std::vector<double>& values, const std::vector<Range>& ranges) {
  double result = 0.0;
  for (const Range& range : ranges)
    for (std::int64_t i = range.begin; i < range.end; ++i)
      result += values[static_cast<std::size_t>(i)];
  return result;
}

// Sums over the parts of groups, and over the variables of blocks.
Scores collected(const Structure& s, const AxisSums& sums) {
  Scores result;
  for (const Dimension& d : s.dimensions) {
    std::vector<double>& scores = result.groups.emplace_back();
    for (const Group& group : d.groups) {
      double score = 0.0;
      for (const Part& part : group.parts)
        score += total(sums.at({part.variable, part.axis}), part.ranges);
      scores.push_back(score);
    }
  }
  std::map<std::size_t, double> of_variable;
  for (const auto& [at, values] : sums)
    if (!of_variable.contains(at.first)) {  // any axis has the sum over the whole variable
      double sum = 0.0;
      for (const double value : values) sum += value;
      of_variable[at.first] = sum;
    }
  for (const Block& block : s.blocks) {
    double score = 0.0;
    for (const std::size_t v : block.variables) score += of_variable.at(v);
    result.blocks.push_back(score);
  }
  return result;
}

}  // namespace

Score score_named(std::string_view name) {
  for (std::size_t i = 0; i < std::size(score_names); ++i)
    if (score_names[i] == name) return static_cast<Score>(i);
  throw ValueError(
      fmt::format("a score is magnitude, taylor or activation, but \"{}\" came", name));
}

std::string_view name(Score score) { return score_names[static_cast<std::size_t>(score)]; }

Scores magnitude_scores(const Structure& s) {
  AxisSums sums;
  for (const auto& [v, axis] : used_axes(s)) {
    const Variable& variable = s.variables[v].variable;
    const Tensor squares = eval(summed(square(cast(variable, f32)), axis));
    const std::vector<float> values = squares.to_vector<float>();
    sums[{v, axis}].assign(values.begin(), values.end());
  }
  Scores scores = collected(s, sums);
  for (auto& dimension : scores.groups)
    for (double& score : dimension) score = std::sqrt(score);
  for (double& score : scores.blocks) score = std::sqrt(score);
  return scores;
}

struct DataScores::State {
  const Structure& structure;
  Score score;
  std::vector<VariableAxis> axes = {};  // Taylor: of each output
  std::unique_ptr<Program> program = {};
  std::vector<std::vector<double>> sums = {};  // of each output
  std::int64_t batches = 0;
  std::vector<std::int64_t> counts = {};  // activation: values of a batch behind each sum

  void compile(std::vector<Tensor> outputs) {
    Graph graph;
    graph.inputs = structure.inputs;
    graph.outputs = std::move(outputs);
    for (const Tensor& output : graph.outputs)
      sums.emplace_back(static_cast<std::size_t>(output.shape().elements()), 0.0);
    program = std::make_unique<Program>(graph);
  }

  void compile_taylor() {
    std::vector<Tensor> variables;
    std::map<std::size_t, std::size_t> place;
    for (const auto& [v, axis] : used_axes(structure)) {
      axes.push_back({v, axis});
      if (place.try_emplace(v, variables.size()).second)
        variables.push_back(structure.variables[v].variable);
    }
    const std::vector<Tensor> gradients = grad(structure.loss, variables);
    std::vector<Tensor> outputs;
    for (const auto& [v, axis] : axes) {
      const std::size_t at = place.at(v);
      outputs.push_back(summed(abs(cast(variables[at], f32) * cast(gradients[at], f32)), axis));
    }
    compile(std::move(outputs));
  }

  void compile_activation() {
    std::vector<Tensor> outputs;
    for (const Dimension& d : structure.dimensions)
      for (const Reading& r : d.readings) {
        outputs.push_back(summed(square(cast(r.value, f32)), r.axis));
        counts.push_back(r.value.shape().elements() / r.value.shape()[r.axis]);
      }
    for (const Block& block : structure.blocks) {
      const bool same = block.entry.type() == block.exit.type();
      const Tensor change = same ? block.exit - block.entry : block.exit;
      outputs.push_back(reshape(sum(square(cast(change, f32))), {1}));
      counts.push_back(change.shape().elements());
    }
    compile(std::move(outputs));
  }
};

DataScores::DataScores(const Structure& structure, Score score)
    : state_(new State{.structure = structure, .score = score}) {
  if (structure.dimensions.empty() && structure.blocks.empty())
    throw ValueError("prune: the model has nothing that could be removed");
  if (score == Score::magnitude) throw ValueError("prune: scores by magnitude take no data");
  if (score == Score::taylor)
    state_->compile_taylor();
  else
    state_->compile_activation();
}
DataScores::~DataScores() = default;

void DataScores::add(const Batch& batch) {
  State& s = *state_;
  s.program->run(batch.tensors);
  for (std::size_t i = 0; i < s.sums.size(); ++i) {
    const std::vector<float> values = s.program->output(static_cast<int>(i)).to_vector<float>();
    for (std::size_t j = 0; j < values.size(); ++j) s.sums[i][j] += static_cast<double>(values[j]);
  }
  ++s.batches;
}

Scores DataScores::scores() const {
  const State& s = *state_;
  if (s.batches == 0) throw ValueError("prune: scores need at least one batch");
  if (s.score == Score::taylor) {
    AxisSums sums;
    for (std::size_t i = 0; i < s.axes.size(); ++i) sums[s.axes[i]] = s.sums[i];
    return collected(s.structure, sums);
  }
  Scores result;
  std::size_t output = 0;
  for (const Dimension& d : s.structure.dimensions) {
    std::vector<double>& scores = result.groups.emplace_back(d.groups.size(), 0.0);
    for (const Reading& r : d.readings) {
      std::vector<double> squares(d.groups.size(), 0.0), indices(d.groups.size(), 0.0);
      for (std::size_t i = 0; i < r.group_of.size(); ++i)
        if (r.group_of[i] >= 0) {
          squares[static_cast<std::size_t>(r.group_of[i])] += s.sums[output][i];
          indices[static_cast<std::size_t>(r.group_of[i])] += 1.0;
        }
      const double values = static_cast<double>(s.counts[output] * s.batches);
      for (std::size_t g = 0; g < scores.size(); ++g)
        if (indices[g] > 0.0) scores[g] += squares[g] / (indices[g] * values);
      ++output;
    }
  }
  for (std::size_t b = 0; b < s.structure.blocks.size(); ++b, ++output)
    result.blocks.push_back(s.sums[output][0] / static_cast<double>(s.counts[output] * s.batches));
  return result;
}

}  // namespace ebb::prune
