#include "cli/single_level.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/bound_step.h"
#include "cli/budget_errors.h"
#include "cli/evaluation.h"
#include "cli/feed.h"
#include "cli/link_traffic.h"
#include "cli/planning.h"
#include "cli/process_memory.h"
#include "cli/pruning.h"
#include "cli/ranks.h"
#include "cli/recompute_rules.h"
#include "cli/run_loop.h"
#include "cli/tiers.h"
#include "cli/verb.h"
#include "ebb/communicator.h"
#include "ebb/data/loader.h"
#include "ebb/data/part.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/plan_file.h"
#include "ebb/models/origin.h"
#include "ebb/train/train_step.h"
#include "train/trace_count.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Types = std::vector<TensorType>;

// Skips in a row that end a run. In fp16, skips at loss scales of 1 and above do not count: they
// are the search for a scale without overflow.
constexpr std::int64_t most_skips = 64;

std::unique_ptr<workloads::Workload> make_task(const TrainCommand& command) {
  auto task = workloads::make_workload(command.workload());
  if (command.planning.accumulate != "auto")
    check_accumulation(std::stoll(command.planning.accumulate), task->batch_size);
  if (command.save && !task->saves)
    throw UsageError(fmt::format(
        "--save: the workload {} cannot be written as a Hugging Face folder: use --checkpoint DIR",
        command.workload().name));
  if (command.save) task->check_save();
  return task;
}

class SingleLevel : public Trainee {
 public:
  SingleLevel(const TrainCommand& command, const Rates& rates, const std::optional<SavedRun>& saved)
      : command_(command), rates_(rates), task_(make_task(command)) {
    const auto pruning = gradual_pruning(planning_);
    if (pruning && command.plan)
      throw UsageError(
          "--plan cannot be used with --prune: the plan in a file is for one size of the model");
    if (pruning && command.keep_best && command.save)
      throw UsageError(
          "--prune, --keep-best and --save: the best weights may have the shapes of an earlier "
          "step: leave out one of them");
    if (pruning)
      pruner_.emplace(*pruning, planning_.prune, *task_, types_,
                      saved ? pruned_share(*saved) : 0.0);
    if (planning_.whole_process)
      fixed_ = fixed_cost(bytes_of_step_to_come(task_->model().parameters().size()));
    if (command.eval_batches > 0)
      beside_ = evaluation_keeps(task_->model(), metrics_of(*task_), *task_->test);
    plan_with_shared_tuning(planning_, [&](const std::shared_ptr<const Tuning>& tuning) {
      tuning_ = tuning;
      step_ = planned_step();
      plan_ = &step_->plan(types_);
    });
    require_recomputation(planning_, command.workload().name, *plan_);
    if (pruner_) begin_pruning();
    load_ = command.workload().model.has_value();
    load_masks_ = planning_.sparsity.masks.has_value();
    require_agreement(planning_, *this, plan_fingerprint(*plan_));
    if (command.plan && planning_.offload_folder && plan_->held[Tier::disk] == 0_B)
      throw UsageError(fmt::format("--offload-folder: the plan in {} moves nothing to a disk",
                                   command.plan->string()));
  }

  Facts facts() const override {
    return {task_->model().parameter_count(),
            task_->batch_size,
            {{"train", task_->train_part}, {"test", task_->test_part}},
            task_->limit,
            initialised_};
  }

  // --- Memory

  TrainingMemory memory() const override {
    const std::optional<Bytes> steps = step_->options().compile.plan.budget;
    return {plan_->arena(), plan_->persistent, *plan_,
            steps ? std::optional(*steps + beside_) : std::nullopt, fixed_};
  }
  Bytes kept_by_evaluation() const override { return beside_; }
  Evaluation evaluation(std::int64_t batches) override {
    CompileOptions compile = step_->options().compile;
    compile.arena = step_->arena();
    return {task_->model(),
            metrics_of(*task_),
            task_->test,
            task_->batch_size,
            batches,
            compile,
            memory(),
            [this](const Graph& graph) { return step_->gathered(graph); },
            task_->weight ? MeanOf::targets : MeanOf::items};
  }
  void load() override {
    if (load_) {
      place_in_tiers();
      task_->load();
      if (const auto* model = dynamic_cast<const models::HasOrigin*>(&task_->model()))
        initialised_ = model->origin().initialised;
    }
    if (load_masks_) io::load_masks(*planning_.sparsity.masks / "checkpoint.safetensors", *step_);
  }
  const Arena& arena() const override { return *step_->arena(); }
  Leaves leaves() override { return step_->leaves(types_); }
  Bytes resident() override { return step_->resident(types_); }

  // --- Checkpoints

  workloads::TrainSpec spec() const override {
    workloads::TrainSpec spec = spec_of(command_);
    fill_in(spec, *task_, step_->optimizer());
    spec.planning.accumulate = std::to_string(step_->options().accumulate);
    return spec;
  }
  workloads::DataFingerprint data_fingerprint() const override {
    workloads::DataFingerprint facts =
        workloads::data_fingerprint(command_.workload().data, *task_->train);
    facts.merge(workloads::model_fingerprint(command_.workload()));
    return facts;
  }
  void restore(const SavedRun& saved, const std::vector<std::string>& changed) override {
    place_in_tiers();
    const io::Notes notes =
        io::load_checkpoint(saved.file, task_->model(), *step_, saved_state(changed));
    load_ = false;  // the checkpoint contains all weights
    load_masks_ =
        planning_.sparsity.masks && std::ranges::find(changed, "sparsity-masks") != changed.end();
    const auto position = notes.find("loader");
    if (position == notes.end())
      throw FileError(fmt::format("{}: the data's position is missing", saved.file.string()));
    try {
      loader_.restore(
          position_near(loader_.save(), loader_state(position->second), loader_.batches()));
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}: {}", saved.file.string(), error.what()));
    }
  }
  Bytes checkpoint_bytes() const override { return io::checkpoint_bytes(task_->model(), *step_); }
  void save_checkpoint(const fs::path& file, const io::Notes& notes) override {
    io::Notes own = notes;
    own["loader"] = text_of(feed_.position());
    if (pruner_) own[pruned_note] = fmt::format("{}", pruner_->share());
    io::save_checkpoint(file, task_->model(), *step_, own);
  }
  std::optional<std::string> non_finite_weight() const override {
    const auto path = non_finite_variable(step_->weights(), task_->model().buffers());
    return path ? std::optional(fmt::format("\"{}\"", *path)) : std::nullopt;
  }
  std::string tokenizer_json() const override { return task_->tokenizer_json; }
  Bytes saved_bytes() const override {
    const bool adapters = saves_adapters();
    Bytes total;
    for (const nn::NamedVariable& p : task_->model().parameters())
      if (!adapters || p.path.find(".lora_") != std::string::npos)
        total += Bytes{p.shape().elements() * size_of(task_->model().dtype()).count};
    return total;
  }
  void gather_model() override { io::gather_weights(task_->model(), *step_); }
  void save_model(const fs::path& folder) override { task_->save(folder); }

  // --- Steps

  std::int64_t step() const override { return step_->step(); }
  bool intact() const override { return step_->intact(); }

  void on_reshape(Reshaping reshaping) override { reshaping_ = std::move(reshaping); }

  StepTaken advance(Outputs& outputs) override {
    TrainStep& step = *step_;
    const Batch batch = feed_.take();
    const bool ahead = plan_->device.kind == Device::Kind::cuda && step.step() + 1 < command_.steps;
    const Stopwatch watch;
    const StepResult result = step(batch, [&] {
      if (!ahead) return;
      if (const Batch* next = feed_.prefetch()) step.expect(*next);
    });
    require_finite(result, batch);
    feed_.done();
    const StepTaken taken{result.loss, watch.ms(), watch.processor_ms(), result.rate};
    outputs.log("loss", step.step(), result.loss);
    outputs.log("rate", step.step(), result.rate);
    if (planning_.clip) outputs.log("gradient_norm", step.step(), result.gradient_norm);
    result.skipped ? ++skipped_, ++in_a_row_ : in_a_row_ = 0;
    // Skipping helps as long as the weights are finite. They are checked after 1, 2, 4, ... skipped
    // steps.
    if (planning_.on_nan == "skip" && std::has_single_bit(in_a_row_)) require_finite_weights();
    loss_scale_ = result.loss_scale;
    require_few_skips(result.skipped);
    if (scales_losses()) outputs.log("loss_scale", step.step(), loss_scale_);
    if (pruner_)
      if (const std::optional<double> share = pruner_->due(step.step())) cut(*share, outputs);
    return taken;
  }

  // --- Report

  std::string_view counted() const override { return "steps"; }
  std::string data_text() const override {
    return fmt::format("trained on {}\ntested on {}\n", to_string(task_->train_part),
                       to_string(task_->test_part));
  }
  std::string steps_text() const override {
    return (pruner_ ? pruner_->text() : "") + mask_text() + skipped_text();
  }
  std::string skipped_text() const {
    if (scales_losses())
      return fmt::format("{} of the steps skipped, loss scale {} at last\n", skipped_, loss_scale_);
    if (skipped_ == 0) return {};
    return fmt::format("{} of the steps skipped, because they were not finite\n", skipped_);
  }
  std::string plan_text() const override {
    const std::string tiers =
        tier_text(*plan_) +
        (planning_.leaves ? link_text(planning_, link_traffic(*plan_, rates_), rates_) : "");
    if (plan_->recomputed_nodes() == 0) return tiers;
    return tiers +
           fmt::format(
               "{} of {} instructions run again: {:.3f} × the time of keeping all, as predicted\n",
               plan_->recomputed_nodes(), plan_->instructions.size(), plan_->overhead());
  }
  nlohmann::ordered_json fields() const override {
    nlohmann::ordered_json fields{{"precision", planning_.precision},
                                  {"traced_steps", traced_steps().load()}};
    fields.update(plan_fields(*plan_));
    TierUse use{step_->held(types_), step_->file_traffic(types_)};
    use.held[Tier::device] = step_->resident(types_);
    if (const auto tiers = tier_fields(*plan_, step_->options().compile, use); !tiers.empty())
      fields["tiers"] = tiers;
    if (scales_losses() || planning_.on_nan == "skip") fields["skipped_steps"] = skipped_;
    if (scales_losses()) fields["loss_scale"] = loss_scale_;
    if (step_->options().sparse) {
      const TrainStep::MaskCounts masks = step_->mask_counts();
      fields["masks"] = {
          {"tensors", masks.tensors}, {"weights", masks.weights}, {"zeros", masks.dead}};
    }
    if (pruner_) {
      pruner_->sizes.back().held = use.held[Tier::device];
      fields["pruning"] = pruner_->fields();
    }
    if (planning_.leaves) fields.update(link_fields(planning_, link_traffic(*plan_, rates_)));
    return fields;
  }
  std::string on_nan_hint() const override {
    return fmt::format(
        "--lr, here {}, may be too large; {}--on-nan ignore continues", step_->optimizer().rate(),
        planning_.on_nan == "skip" ? ""
                                   : "--on-nan skip skips steps whose gradients are not finite, ");
  }

 private:
  // Whether only the adapters are saved.
  bool saves_adapters() const {
    const workloads::Options& options = command_.workload();
    return options.model && !options.merge && (options.lora || options.adapter);
  }
  // Moves variables to the tiers that the plan gives them before they are loaded, because all of
  // them together may exceed memory.
  void place_in_tiers() {
    if (plan_->held[Tier::host] + plan_->held[Tier::disk] > Bytes{}) (void)step_->leaves(types_);
  }
  bool scales_losses() const { return planning_.precision == "fp16"; }

  void require_finite(const StepResult& result, const Batch& batch) const {
    if (planning_.on_nan != "stop") return;
    const bool loss = !std::isfinite(result.loss),
               norm = planning_.clip && !scales_losses() && !std::isfinite(result.gradient_norm);
    if (!loss && !norm) return;
    throw NotFinite(fmt::format(
        "step {}: the {} is {}; the first value that is not finite is {}; --on-nan "
        "skip skips such steps, --on-nan ignore continues",
        step(), loss ? "loss" : "norm of the gradients",
        text_of_non_finite(loss ? result.loss : result.gradient_norm), first_non_finite(batch)));
  }

  // Nothing that goes wrong in the search may hide the message about the loss.
  std::string first_non_finite(const Batch& batch) const {
    if (planning_.ranks > 1) return "not looked for with several ranks";
    try {
      const std::optional<NonFinite> found = step_->find_non_finite(batch);
      return found ? to_string(*found) : "not found: computed again, all values are finite";
    } catch (const std::bad_alloc&) {
      return "not looked for: out of memory";
    } catch (const Error& error) {
      return fmt::format("not looked for: {}", error.what());
    }
  }

  // Finite weights may be so large that all later steps are skipped.
  void require_few_skips(bool skipped) {
    const bool searches = scales_losses() && loss_scale_ >= 1.0;
    without_effect_ = skipped && !searches ? without_effect_ + 1 : 0;
    if (without_effect_ < most_skips || planning_.on_nan == "ignore") return;
    throw NotFinite(fmt::format(
        "step {}: {} steps in a row were skipped, because their losses or gradients are not "
        "finite{}; --lr, here {}, may be too large",
        step(), most_skips,
        scales_losses() ? fmt::format(", at loss scales down to {:.3g}", loss_scale_) : "",
        step_->optimizer().rate()));
  }

  void require_finite_weights() const {
    const std::string weight = weight_of_any_rank(planning_, non_finite_weight().value_or(""));
    if (!weight.empty())
      throw NotFinite(
          fmt::format("step {}: {} is not finite, so every later step would be skipped too; --lr, "
                      "here {}, may be too large",
                      step(), weight, step_->optimizer().rate()));
  }

  std::string mask_text() const {
    if (!step_->options().sparse) return {};
    const TrainStep::MaskCounts masks = step_->mask_counts();
    return fmt::format("{} of {} masked weights are zero ({:.2f} %), in {} tensors\n", masks.dead,
                       masks.weights,
                       100.0 * static_cast<double>(masks.dead) / static_cast<double>(masks.weights),
                       masks.tensors);
  }

  // --- Pruning

  // Refuses state that cannot be cut before the first step.
  void begin_pruning() {
    pruner_->sizes.push_back(size_now());
    std::map<std::string, Shape> weights;
    for (const nn::NamedVariable& p : task_->model().parameters())
      weights[p.path] = p.variable.shape();
    for (const auto& [path, state] : step_->optimizer_state().all()) {
      const auto owner = std::find_if(weights.begin(), weights.end(), [&](const auto& w) {
        return path.starts_with(w.first + ".");
      });
      if (owner != weights.end() && owner->second.rank() > 1 &&
          !prune::is_by_element(state.shape(), owner->second))
        throw UsageError(fmt::format(
            "--prune: the optimizer's state \"{}\" is {} and cannot be cut like its weight, which "
            "is {}; adam, adamw, sgd and lion have a number for each weight",
            path, to_string(state.type()), to_string(owner->second)));
    }
  }

  Pruner::Size size_now() const {
    return {.step = step_->step(),
            .share = pruner_->share(),
            .parameters = task_->model().parameter_count(),
            .weights = plan_->at_peak[Category::weights],
            .gradients = plan_->at_peak[Category::gradients],
            .state = plan_->at_peak[Category::optimizer],
            .peak = plan_->peak};
  }

  // Frees the dense step and its arena before anything of the smaller step is allocated, so that
  // memory stays below the dense step's.
  void cut(double share, Outputs& outputs) {
    std::optional<Pruner::Cut> cut = pruner_->next(share);
    if (!cut) return;
    pruner_->sizes.back().held = step_->resident(types_);
    if (reshaping_.before) reshaping_.before();
    const TrainOptions options = step_->options();
    prune::StepState state = prune::state_of(*step_);
    step_.reset(), plan_ = nullptr;
    state = prune::sliced_state(cut->structure, cut->removal, std::move(state));
    pruner_->apply(*cut, share);
    cut.reset();
    step_ = make_step(options);
    plan(*step_);
    plan_ = &step_->plan(types_);
    prune::give_state(std::move(state), *step_);
    pruner_->sizes.push_back(size_now());
    if (reshaping_.after) reshaping_.after();
    outputs.log("parameters", step_->step(), static_cast<double>(pruner_->sizes.back().parameters));
  }

  // --- Planning

  // `program` is the heap memory that binding the plan's kernels will take.
  Bytes fixed_cost(Bytes program) {
    const Bytes cost =
        measure_fixed_cost(planning_, loader_bytes(*task_->train, loading_) + program);
    resident_ = process_resident();
    return cost;
  }

  // Without the number of micro-batches.
  TrainOptions train_options() const {
    TrainOptions options = step_options(planning_);
    options.weight = task_->weight;
    const std::int64_t rest = std::max<std::int64_t>(1, command_.steps - command_.warmup);
    optim::SchedulePtr schedule = command_.schedule == "cosine"   ? optim::cosine(rest, 0.1)
                                  : command_.schedule == "linear" ? optim::linear_decay(rest)
                                                                  : optim::constant();
    options.schedule =
        command_.warmup > 0 ? optim::linear_warmup(command_.warmup, schedule) : schedule;
    PlanningOptions planning = planning_;
    if (command_.plan) planning.offload_folder.reset();  // of the step's plan, from the file, below
    options.compile = compile_options(planning, command_.workload().seed, rates_, fixed_, beside_);
    if (tuning_) options.compile.plan.tuning = tuning_;
    if (command_.plan) {
      options.compile.offload_folder = planning_.offload_folder.value_or(".");
      options.compile.planner = [file = *command_.plan](const Graph& graph) {
        return io::load_plan(file, graph);
      };
    }
    return options;
  }

  std::unique_ptr<TrainStep> make_step(const TrainOptions& options) const {
    return std::make_unique<TrainStep>(
        task_->model(), optimizer_of(*task_, planning_, command_.rate),
        [this](const Batch& b) { return task_->loss(b); }, options);
  }

  // The step with its plan. The plan is made once, with two exceptions: the least budget must be
  // found before it can be planned with, and planning itself may take memory that a budget for the
  // whole process no longer has room for.
  std::unique_ptr<TrainStep> planned_step() {
    TrainOptions options = train_options();
    std::unique_ptr<TrainStep> step = chosen_step(options);
    if (!planning_.whole_process) return step;
    fixed_ = fixed_cost(bytes_of_bound_step(step->plan(types_).instructions.size()));
    const std::int64_t parts = step->options().accumulate;
    options = train_options(), options.accumulate = parts;
    if (step->plan(types_).peak <= *options.compile.plan.budget) return step;
    step = make_step(options);
    plan(*step);
    return step;
  }

  std::unique_ptr<TrainStep> chosen_step(TrainOptions options) const {
    if (planning_.accumulate == "auto" && planning_.budget != "least") {
      std::map<std::int64_t, std::unique_ptr<TrainStep>> tried;
      options.accumulate = fastest_parts(task_->batch_size, [&](std::int64_t parts) {
        options.accumulate = parts;
        return (tried[parts] = make_step(options))->plan(types_).predicted_ms;
      });
      plan(*tried.at(options.accumulate));  // already made, unless no number keeps the budget
      return std::move(tried.at(options.accumulate));
    }
    options.accumulate = accumulation(*task_, planning_, options.compile);
    std::unique_ptr<TrainStep> step = make_step(options);
    if (planning_.budget == "least") {
      settle_budget(planning_, step->trace(types_), options.compile);
      step = make_step(options);
    }
    plan(*step);
    return step;
  }

  // Plans the step; the error says what would help.
  void plan(TrainStep& step) const {
    try {
      step.plan(types_);
    } catch (const BudgetError&) {
      plan_or_explain(command_.workload(), planning_, step.trace(types_), step.options().compile,
                      {beside_, fixed_, resident_});
      throw;
    }
  }

  const TrainCommand& command_;
  const PlanningOptions& planning_ = command_.planning;
  const Rates rates_;
  const std::unique_ptr<workloads::Workload> task_;
  const data::LoaderOptions loading_ = workloads::training_loader(
      task_->batch_size, command_.workload().seed, command_.workload().device);
  data::Loader loader_{planning_.leaves ? data::part_of_batches(task_->train, task_->batch_size,
                                                                rank_options(planning_))
                                        : task_->train,
                       loading_};
  Feed feed_{loader_};
  const Types types_ = loader_.types().front();
  std::shared_ptr<const Tuning> tuning_;  // of rank 0's GPU; null: found here
  Bytes fixed_, beside_;  // of the process beside the plan; kept by evaluation alone
  Bytes resident_;        // of the process, when its fixed cost was measured
  std::unique_ptr<TrainStep> step_;
  const Plan* plan_ = nullptr;
  mutable std::optional<Pruner> pruner_;  // its sizes are completed when they are reported
  Reshaping reshaping_;
  bool load_ = false;  // the weights of a folder
  std::vector<std::string> initialised_;
  bool load_masks_ = false;  // of another run
  double loss_scale_ = 1.0;
  std::int64_t skipped_ = 0;
  std::uint64_t in_a_row_ = 0;       // steps skipped, up to the last
  std::int64_t without_effect_ = 0;  // of them, those that are no search for a loss scale
};

}  // namespace

workloads::TrainSpec single_level_spec(const TrainCommand& command) {
  const auto task = make_task(command);
  // Refuses invalid combinations early.
  device_options(command.planning, {}), step_options(command.planning);
  gradual_pruning(command.planning);
  if (command.planning.recompute)
    check_recompute("--recompute", Recompute::parse(*command.planning.recompute),
                    command.planning.budget.has_value());
  workloads::TrainSpec spec = spec_of(command);
  fill_in(spec, *task, optimizer_of(*task, command.planning, command.rate));
  return spec;
}

int train_single_level(const TrainCommand& command, const std::optional<SavedRun>& saved,
                       Output output) {
  const Rates rates = command.planning.needs_rates() ? shared_rates(command.planning) : Rates{};
  TrainCommand settled = command;
  if (settled.planning.shard == "auto") {
    const auto task = make_task(command);
    const Bytes beside = command.eval_batches > 0
                             ? evaluation_keeps(task->model(), metrics_of(*task), *task->test)
                             : Bytes{};
    settle_shard(command.workload(), settled.planning,
                 compile_options(command.planning, command.workload().seed, rates, {}, beside));
  }
  return train_run(settled, saved, output,
                   [&] { return std::make_unique<SingleLevel>(settled, rates, saved); });
}

}  // namespace ebb::cli
