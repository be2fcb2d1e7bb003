#include "ebb/mlo/problem.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "mlo/level.h"
#include "train/usual_form.h"

namespace ebb::mlo {

Problem::Problem(std::string name, nn::ModuleBase& module, optim::Optimizer optimizer,
                 const ProblemOptions& options)
    : name_(std::move(name)),
      module_(module),
      optimizer_(
          optimizer.with_form(options.config.form.value_or(usual_form(options.config.precision)))),
      options_(options) {
  if (name_.empty() || name_.find('/') != std::string::npos)
    throw ValueError(
        fmt::format("a problem's name must not be empty or have a slash, but is \"{}\"", name_));
  check(options_.config, name_);
}
Problem::~Problem() = default;

std::vector<nn::NamedVariable> Problem::trainable_parameters() const {
  return module_.trainable_parameters();
}
std::vector<nn::NamedVariable> Problem::meta_trainable_parameters() const {
  return trainable_parameters();
}

Batch Problem::get_batch() {
  if (options_.loaders.empty())
    throw ValueError(
        fmt::format("problem \"{}\" has no data: give it loaders, or override get_batch", name_));
  Batch batch;
  for (std::size_t i = 0; i < options_.loaders.size(); ++i) {
    data::Loader& loader = *options_.loaders[i];
    if (i == 0 && loader.epoch() > 0 && loader.position() == 0) on_epoch_end();
    const Batch part = loader.next();
    batch.tensors.insert(batch.tensors.end(), part.tensors.begin(), part.tensors.end());
  }
  return batch;
}

std::vector<TensorType> Problem::batch_types() const {
  std::vector<TensorType> types;
  for (const LoaderPtr& loader : options_.loaders) {
    const std::vector<TensorType> part = loader->types().front();
    types.insert(types.end(), part.begin(), part.end());
  }
  return types;
}

Problem& Problem::other(std::string_view name) const {
  std::string names;
  for (Problem* problem : all_) {
    if (problem->name() == name) return *problem;
    names += (names.empty() ? "" : ", ") + problem->name();
  }
  throw ValueError(fmt::format("problem \"{}\" asks for problem \"{}\", but {}", name_, name,
                               all_.empty() ? "is part of no engine" : "there are: " + names));
}

void Problem::wrong_type(std::string_view name) const {
  throw ValueError(fmt::format(
      "problem \"{}\" asks for problem \"{}\" as another class than it has", name_, name));
}

Level& Problem::level() const {
  if (!level_) throw ValueError(fmt::format("problem \"{}\" is part of no engine", name_));
  return *level_;
}

std::int64_t Problem::count() const { return level().count(); }
std::int64_t Problem::updates() const { return level().updates(); }
const Stats& Problem::last() const { return level().last(); }

}  // namespace ebb::mlo
