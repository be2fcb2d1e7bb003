#include "mlo/step_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <span>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "mlo/hypergradient.h"
#include "mlo/leaf_step.h"

namespace ebb::mlo {
namespace {

void collect_through(const Level& level, bool first_order, std::vector<Level*>& found) {
  for (const std::vector<Level*>& path : level.paths)
    for (std::size_t i = 1; i + 1 < path.size(); ++i) {
      if (std::find(found.begin(), found.end(), path[i]) != found.end()) continue;
      found.push_back(path[i]);
      if (!first_order) collect_through(*path[i], first_order, found);
    }
}

// Whether `loss` reads any of these variables.
bool reads(const Tensor& loss, const std::vector<Tensor>& variables) {
  const auto nodes = topological_order({{}, {loss}, {}});
  return std::any_of(variables.begin(), variables.end(), [&](const Tensor& variable) {
    return std::find(nodes.begin(), nodes.end(), variable.node()) != nodes.end();
  });
}

void require_reads(const Level& reader, const Tensor& loss, const Level& read,
                   const std::vector<Tensor>& variables) {
  if (variables.empty())
    throw ValueError(
        fmt::format("the dependencies say that the loss of \"{}\" reads parameters of \"{}\", but "
                    "all of those are frozen",
                    reader.name(), read.name()));
  if (!reads(loss, variables))
    throw ValueError(fmt::format(
        "the dependencies say that the loss of \"{}\" reads parameters of \"{}\", but it does not",
        reader.name(), read.name()));
}

// Which of these variables a level's loss, or the log-probability of its samples, depends on.
std::vector<bool> reached_by(const StepOutput& output, const std::vector<Tensor>& variables) {
  std::vector<bool> reached(variables.size(), false);
  for (const Tensor& value : {output.loss, output.log_probability}) {
    if (!value) continue;
    const std::vector<Tensor> gradients = grad_where_reached(sum(value), variables);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i]) reached[i] = true;
  }
  return reached;
}

// The remainders of paths after a common prefix.
using Suffixes = std::vector<std::span<Level* const>>;

// Propagates the vector, in the parameters of `at`, along all of the paths and adds the results to
// the gradients of `total`. Paths with a common prefix share its computation.
void follow(StepTrace& trace, Level& at, const Vectors& vector, const Suffixes& paths,
            TracedGradients& total) {
  std::vector<Level*> nexts;
  for (const auto& path : paths)
    if (std::find(nexts.begin(), nexts.end(), path[0]) == nexts.end()) nexts.push_back(path[0]);
  for (Level* next : nexts) {
    Suffixes onwards;
    bool ends = false;
    for (const auto& path : paths)
      if (path[0] == next)
        path.size() == 1 ? void(ends = true) : onwards.push_back(path.subspan(1));
    const Problem& problem = next->problem();
    const std::vector<Tensor> to =
        tensors_of(ends ? problem.trainable_parameters() : problem.meta_trainable_parameters());
    const StepOutput& output = trace.output(at);
    if (!output.log_probability || !reads(output.log_probability, to))
      require_reads(at, output.loss, *next, to);
    const Vectors there = response({trace, at, vector, to});
    for (const Tensor& t : there) t.node()->set_category(Category::gradients);
    if (!ends) {
      follow(trace, *next, there, onwards, total);
      continue;
    }
    total.gradients = add(total.gradients, there);
    const std::vector<bool> reached = reached_by(output, to);
    for (std::size_t i = 0; i < reached.size(); ++i)
      if (reached[i]) total.reached[i] = true;
  }
}

// Updates that reduce the float16 loss scales of this level's hypergradients, for a step in which
// one has overflowed.
std::vector<Update> scales_that_fall(const Level& level) {
  std::vector<Update> updates;
  for (Level* through : levels_through(level))
    if (const auto scaler = scaler_of(through->problem(), through->optimizer_state())) {
      const Tensor infinite =
          full({}, std::numeric_limits<double>::infinity(), f32, through->problem().device());
      updates.push_back(scaler->decide(infinite).updates.front());
    }
  return updates;
}

}  // namespace

std::vector<Level*> levels_through(const Level& level) {
  std::vector<Level*> found;
  collect_through(level, level.config().first_order, found);
  return found;
}

Feeding feeding_of(Level& level, std::size_t own) {
  Feeding feeding;
  for (std::size_t part = 0; part < own; ++part)
    feeding.batches.push_back({{&level, When::to_come}, part});
  feeding.updates.push_back({&level, When::to_come});
  for (Level* through : levels_through(level)) {
    const Config& config = through->config();
    const std::size_t parts = static_cast<std::size_t>(config.gradient_accumulation);
    if (config.type == Method::unrolled) {
      for (std::int64_t ago = config.unroll_steps - 1; ago >= 0; --ago) {
        for (std::size_t part = 0; part < parts; ++part)
          feeding.batches.push_back({{through, ago}, part});
        feeding.updates.push_back({through, ago});
      }
    } else {
      feeding.batches.push_back({{through, 0}, parts - 1});
      if (config.type == Method::sama) feeding.updates.push_back({through, When::to_come});
    }
  }
  return feeding;
}

StepTrace::StepTrace(Level& owner, const Feeding& feeding,
                     const std::vector<std::vector<TensorType>>& types)
    : owner_(owner) {
  if (owner.ranks().any()) copies_.emplace(owner.ranks());
  const Device device = owner.problem().device();
  for (std::size_t i = 0; i < feeding.batches.size(); ++i) {
    const Batch batch = placeholders(types[i], device);
    inputs_.insert(inputs_.end(), batch.tensors.begin(), batch.tensors.end());
    batches_.emplace(feeding.batches[i], batch);
  }
  for (const When& when : feeding.updates) {
    const Tensor rate = input({{}, f64}, when.level->name() + ".rate", device),
                 step = input({{}, f64}, when.level->name() + ".step", device);
    inputs_.push_back(rate);
    inputs_.push_back(step);
    scalars_.emplace(when, std::pair{rate, step});
  }
}

std::vector<Batch> StepTrace::batches(const When& when) const {
  std::vector<Batch> result;
  for (const auto& [part, batch] : batches_)
    if (part.when == when) result.push_back(batch);
  return result;
}

Vectors StepTrace::at(std::size_t place, const Vectors& whole) {
  return copies_ ? copies_->at(place, whole) : whole;
}

Tensor StepTrace::share_of(const Tensor& mean) const {
  const std::int64_t count = copies_ ? copies_->blocks().leaves : 1;
  return count == 1 ? mean : mean * (1.0 / static_cast<double>(count));
}

Vectors StepTrace::over_leaves(const std::function<Vectors(std::size_t place)>& part,
                               const std::string& path) {
  if (!copies_) return part(0);
  std::vector<Vectors> own;
  for (std::size_t place = 0; place < copies_->places(); ++place) own.push_back(part(place));
  return leaf_sums(own, *copies_, std::vector<std::string>(own.front().size(), path));
}

const std::vector<StepOutput>& StepTrace::leaves(Level& level) {
  const auto [found, missing] = leaves_.try_emplace(&level);
  if (!missing) return found->second;
  const Batch last = batches({&level, 0}).back();
  if (copies_)
    found->second = traced_leaves(level.problem(), last, *copies_);
  else
    found->second = {traced_output(level.problem(), last)};
  return found->second;
}

const StepOutput& StepTrace::output(Level& level) {
  const std::vector<StepOutput>& all = leaves(level);
  if (!copies_) return all.front();
  const auto [found, missing] = outputs_.try_emplace(&level);
  if (!missing) return found->second;
  const auto whole = [&](const std::string& name,
                         const std::function<Tensor(const StepOutput&)>& of) {
    return over_leaves([&](std::size_t place) { return Vectors{of(all[place])}; },
                       level.name() + "." + name)
        .front();
  };
  found->second.loss = whole("loss", [&](const StepOutput& o) { return share_of(o.loss); });
  if (all.front().log_probability)
    found->second.log_probability =
        whole("log_probability", [](const StepOutput& o) { return sum(o.log_probability); });
  return found->second;
}

bool StepTrace::of_loss_alone(const Level& level) const {
  return owner_.config().first_order || level.paths.empty();
}

const std::vector<Vectors>& StepTrace::leaf_gradients(Level& level) {
  const auto [found, missing] = leaf_gradients_.try_emplace(&level);
  if (!missing) return found->second;
  const Vectors parameters = tensors_of(level.problem().meta_trainable_parameters());
  const std::vector<StepOutput>& all = leaves(level);
  for (std::size_t place = 0; place < all.size(); ++place)
    found->second.push_back(
        grad(with_scale(share_of(all[place].loss), scale(level)), at(place, parameters)));
  return found->second;
}

const Vectors& StepTrace::gradient(Level& level) {
  const auto [found, missing] = gradients_.try_emplace(&level);
  if (!missing) return found->second;
  const std::vector<nn::NamedVariable> parameters = level.problem().meta_trainable_parameters();
  if (of_loss_alone(level))
    return found->second =
               over_leaves([&](std::size_t place) { return leaf_gradients(level)[place]; },
                           level.name() + ".gradient");
  const TracedGradients whole = whole_gradients(*this, level, {batches({&level, 0}).back()});
  const std::vector<Tensor> all = tensors_of(level.problem().trainable_parameters());
  Vectors result;
  for (const nn::NamedVariable& p : parameters) {
    const auto at = std::find(all.begin(), all.end(), p.variable);
    if (at == all.end())
      throw ValueError(fmt::format("problem \"{}\": \"{}\" is meta-trainable, but not trainable",
                                   level.name(), p.path));
    result.push_back(whole.gradients[static_cast<std::size_t>(at - all.begin())]);
  }
  if (const Tensor s = scale(level)) result = scaled(result, s);
  return gradients_[&level] = std::move(result);
}

Vectors StepTrace::gradient_vjp(Level& level, const Vectors& v, const std::vector<Tensor>& wrt) {
  if (!of_loss_alone(level)) return vjp(gradient(level), v, wrt);
  return over_leaves(
      [&](std::size_t place) {
        return vjp(leaf_gradients(level)[place], at(place, v), at(place, wrt));
      },
      level.name() + ".second_derivative");
}

TracedGradients whole_gradients(StepTrace& trace, Level& level, const std::vector<Batch>& parts) {
  // One backward pass gives the gradients of the loss with respect to all levels that it reads.
  std::vector<Tensor> wrt = tensors_of(level.problem().trainable_parameters());
  const std::size_t own = wrt.size();
  struct First {
    Level* level;
    std::vector<Tensor> parameters;
    Suffixes paths;
  };
  std::vector<First> firsts;
  for (const std::vector<Level*>& path : level.paths) {
    auto at = std::find_if(firsts.begin(), firsts.end(),
                           [&](const First& first) { return first.level == path[1]; });
    if (at == firsts.end()) {
      const auto parameters = tensors_of(path[1]->problem().meta_trainable_parameters());
      wrt.insert(wrt.end(), parameters.begin(), parameters.end());
      at = firsts.insert(firsts.end(), {path[1], parameters, {}});
    }
    at->paths.push_back(std::span(path).subspan(2));
  }
  TracedGradients traced =
      traced_gradients(level.problem(), parts, wrt, level.optimizer_state(), trace.copies());
  if (level.paths.empty()) return traced;
  // Hypergradients have different scales, so they are unscaled before they are added.
  traced.gradients = without_scale(traced.gradients, traced.scale);
  traced.scale = {};
  const Vectors all = traced.gradients;
  auto from = all.begin() + static_cast<std::ptrdiff_t>(own);
  traced.gradients.resize(own), traced.reached.resize(own);
  for (const First& first : firsts) {
    require_reads(level, traced.loss, *first.level, first.parameters);
    const Vectors vector(from, from + static_cast<std::ptrdiff_t>(first.parameters.size()));
    from += static_cast<std::ptrdiff_t>(first.parameters.size());
    follow(trace, *first.level, vector, first.paths, traced);
  }
  return traced;
}

StepGraph step_graph(Level& level, StepKind kind, const Feeding& feeding,
                     const std::vector<std::vector<TensorType>>& types) {
  const TraceScope fresh;
  StepTrace trace(level, feeding, types);
  const When now{&level, When::to_come};
  TracedGradients traced = whole_gradients(trace, level, trace.batches(now));
  StepGraph result;
  Graph& graph = result.graph;
  graph.inputs = trace.inputs();
  result.tell("loss", traced.loss);
  for (const auto& [key, metric] : traced.metrics) result.tell(key, metric);
  graph.updates = traced.buffers;

  const std::vector<nn::NamedVariable> parameters = level.problem().trainable_parameters();
  const std::int64_t steps = level.config().gradient_accumulation;
  if (level.accumulates()) {
    traced.gradients = without_scale(traced.gradients, traced.scale);
    traced.scale = {};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!traced.reached[i]) continue;
      const Variable& p = parameters[i].variable;
      Variable sum = level.kept().get("accumulated." + parameters[i].path, p.type(), p.device());
      sum.node()->set_category(Category::gradients);
      traced.gradients[i] = sum + traced.gradients[i] * (1.0 / static_cast<double>(steps));
      graph.updates.push_back(
          {sum, kind == StepKind::accumulate ? traced.gradients[i] : zeros_like(p)});
    }
  }
  if (kind == StepKind::update) {
    const std::vector<Update> lower_scales = scales_that_fall(level);
    const bool guarded = !lower_scales.empty() || trace.scale(level);
    const TracedUpdates next = traced_updates(
        level.problem(), traced, trace.rate(now), trace.step(now), level.optimizer_state(),
        guarded ? Guard::yes : Guard::no, level.ranks(), lower_scales);
    graph.updates.insert(graph.updates.end(), next.updates.begin(), next.updates.end());
    if (next.norm) result.tell("gradient_norm", next.norm);
    if (const Tensor scale = trace.scale(level)) result.tell("loss_scale", scale);
    if (next.taken) result.tell("skipped", logical_not(next.taken));
  }
  graph.updates.insert(graph.updates.end(), trace.updates.begin(), trace.updates.end());
  if (trace.copies()) graph = without_leaves(graph);
  return result;
}

}  // namespace ebb::mlo
