// Workloads of one level: a trial is a TrainStep.
#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/ablate/subject.h"
#include "cli/verb.h"
#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/prune/gradual.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/data_fingerprint.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

data::DatasetPtr training_data(const workloads::Workload& task,
                               const std::optional<std::int64_t>& items) {
  if (!items) return task.train;
  return data::Subset::range(task.train, 0, *items);
}

TrainStep make_step(workloads::Workload& task, const Setup& setup) {
  TrainOptions train = step_options(setup.planning);
  train.accumulate = setup.accumulate;
  train.weight = task.weight;
  train.compile = setup.compile;
  // Adam in fewer bits takes Adam's rate; other rules have rates of their own.
  const auto& name = setup.planning.optimizer;
  const std::optional<double> rate =
      name && name->starts_with("adam") ? std::optional(task.optimizer().rate()) : std::nullopt;
  return TrainStep(
      task.model(), optimizer_of(task, setup.planning, rate),
      [&task](const Batch& b) { return task.loss(b); }, train);
}

class SingleLevelTrial : public Trial {
 public:
  SingleLevelTrial(const workloads::Options& options, const Setup& setup,
                   std::optional<std::int64_t> items)
      : task_(workloads::make_workload(placed(options, setup.planning))),
        loader_(training_data(*task_, items),
                workloads::training_loader(task_->batch_size, options.seed, options.device)),
        types_(loader_.types().front()),
        meter_(options.device),
        seed_(options.seed) {
    if (setup.prune > 0.0) {
      dense_ = workloads::make_workload(placed(options, setup.planning));
      shrink_before_steps(setup.prune);
    }
    step_ = std::make_unique<TrainStep>(make_step(*task_, setup));
  }

  const Plan& plan() override { return step_->plan(types_); }
  Bytes least_budget() override {
    return ebb::least_budget(step_->trace(types_), step_->options().compile);
  }
  Step step() override {
    if (!std::exchange(loaded_, true)) load();
    const Batch batch = loader_.next();
    const Clock::time_point begin = Clock::now();
    const double loss = (*step_)(batch).loss;
    return {loss, std::chrono::duration<double, std::milli>(Clock::now() - begin).count()};
  }
  Measured measured() override {
    return meter_.read(step_->leaves(types_), step_->resident(types_));
  }

 private:
  prune::Structure structure_of(workloads::Workload& task) const {
    return prune::find_structure(
        task.model(), [&](const Batch& b) { return task.loss(b); }, types_);
  }

  // Shapes decide the plan; what goes is known once the dense model has its weights.
  void shrink_before_steps(double share) {
    const prune::Structure whole = structure_of(*task_);
    shrinking_.emplace(whole, prune::usual_structure(task_->model()));
    share_ = share;
    task_->shrink(whole, shrinking_->any_removal(whole, share), prune::Values::none);
  }

  void load() {
    if (!dense_) return task_->load();
    dense_->load();
    for (const nn::NamedVariable& p : dense_->model().parameters())
      if (!p.variable.has_value()) p.variable.materialise(seed_);
    {
      const prune::Structure whole = structure_of(*dense_);
      const prune::Scores scores = prune::magnitude_scores(whole);
      prune::copy_kept(whole, shrinking_->removal(whole, scores, share_), task_->model(),
                       prune::Release::yes);
    }
    dense_.reset();
  }

  std::unique_ptr<workloads::Workload> task_, dense_;  // dense_: until it is pruned
  std::optional<prune::Shrinking> shrinking_;
  double share_ = 0.0;
  data::Loader loader_;
  std::vector<TensorType> types_;
  MemoryMeter meter_;
  std::uint64_t seed_;
  std::unique_ptr<TrainStep> step_;
  bool loaded_ = false;
};

class SingleLevelSubject : public Subject {
 public:
  SingleLevelSubject(const workloads::Options& options, std::optional<std::int64_t> items)
      : options_(options), items_(items) {
    const auto task = workloads::make_workload(options);
    batch = task->batch_size;
    if (items && *items < batch)
      throw UsageError(fmt::format("--items {} is less than one batch of {}", *items, batch));
    if (items && *items > task->train->size())
      throw UsageError(
          fmt::format("--items {}: there are only {} to train on", *items, task->train->size()));
    parameters = task->model().parameter_count();
    sources.add(task->model());
    traits.fuses_loss = task->fuses_loss;
    traits.one_level = true;
    traits.folder = options.model.has_value();
    traits.transformer = traits.folder || uses(options, workloads::Setting::heads);
    traits.trains_with_adam = task->optimizer().rule().name().starts_with("adam");
    settings = size_settings(options);
    if (items) settings["items"] = *items;
  }

  std::unique_ptr<Trial> start(const Setup& setup) const override {
    workloads::Options options = options_;
    options.fused_loss = setup.fused_loss;
    if (setup.lora) options.lora = 16, options.base = setup.base;
    Setup seeded = setup;
    seeded.compile.seed = options.seed;
    return std::make_unique<SingleLevelTrial>(options, seeded, items_);
  }

 private:
  workloads::Options options_;
  std::optional<std::int64_t> items_;
};

}  // namespace

std::unique_ptr<Subject> single_level_subject(const workloads::Options& options,
                                              std::optional<std::int64_t> items) {
  return std::make_unique<SingleLevelSubject>(options, items);
}

nlohmann::ordered_json size_settings(const workloads::Options& options) {
  nlohmann::ordered_json all{{"seed", options.seed}};
  const auto add = [&](const char* key, const auto& value) {
    if (value) all[key] = *value;
  };
  add("layers", options.layers), add("width", options.width), add("hidden", options.hidden);
  add("heads", options.heads), add("kv_heads", options.key_value_heads);
  add("vocabulary", options.vocabulary), add("sequence", options.sequence);
  add("classes", options.classes), add("depth", options.depth), add("dropout", options.dropout);
  if (options.layout) all["layout"] = name(*options.layout);
  if (options.data) all["data"] = options.data->string();
  add("tokens", options.tokens), add("labels_from", options.labels_from);
  add("image_size", options.image_size);
  if (options.model) all["model"] = options.model->string();
  if (options.pack) all["pack"] = true;
  add("lora", options.lora), add("lora_alpha", options.lora_alpha);
  add("lora_dropout", options.lora_dropout), add("base", options.base);
  if (!options.lora_modules.empty()) all["lora_modules"] = options.lora_modules;
  if (options.adapter) all["adapter"] = options.adapter->string();
  // A path may come to have other contents.
  workloads::DataFingerprint files = workloads::files_fingerprint(options.data);
  files.merge(workloads::model_fingerprint(options));
  for (const auto& [file, fact] : files) all[file] = fact;
  return all;
}

}  // namespace ebb::cli
