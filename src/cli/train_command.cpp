#include "cli/train_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/multilevel.h"
#include "cli/numbers.h"
#include "cli/workload_options.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

template <class T>
std::optional<std::string> text_of(const std::optional<T>& value) {
  if (!value) return {};
  return std::string(name(*value));
}

std::optional<std::int64_t> whole(const std::optional<int>& value) {
  if (!value) return {};
  return *value;
}
std::optional<int> narrow(const std::optional<std::int64_t>& value) {
  if (!value) return {};
  return static_cast<int>(*value);
}

workloads::LevelSpec spec_of(const workloads::LevelOptions& o) {
  workloads::LevelSpec s;
  s.method = text_of(o.method);
  s.unroll = o.unroll, s.warmup = o.warmup, s.iterations = o.iterations;
  s.accumulate = o.accumulate;
  s.alpha = o.alpha, s.lr = o.rate, s.clip = o.clip;
  s.optimizer = o.optimizer;
  s.precision = text_of(o.precision);
  if (o.recompute) s.recompute = to_string(*o.recompute);
  if (o.budget) s.budget = std::to_string(o.budget->count);
  return s;
}

workloads::LevelOptions options_of(const workloads::LevelSpec& s) {
  workloads::LevelOptions o;
  if (s.method) o.method = mlo::method_by_name(*s.method);
  o.unroll = s.unroll, o.warmup = s.warmup, o.iterations = s.iterations;
  o.accumulate = s.accumulate;
  o.alpha = s.alpha, o.rate = s.lr, o.clip = s.clip;
  o.optimizer = s.optimizer;
  if (s.precision) o.precision = precision_by_name(*s.precision);
  if (s.recompute) o.recompute = Recompute::parse(*s.recompute);
  if (s.budget) o.budget = parse_bytes(*s.budget);
  return o;
}

void fill_in_sizes(workloads::TrainSpec& s, const workloads::Options& o) {
  s.layers = o.layers, s.width = o.width, s.hidden = o.hidden, s.heads = o.heads;
  s.key_value_heads = o.key_value_heads, s.vocabulary = o.vocabulary, s.sequence = o.sequence;
  s.classes = o.classes, s.depth = o.depth, s.dropout = o.dropout;
  s.layout = text_of(o.layout);
  s.batch = o.batch;
}

}  // namespace

bool TrainCommand::several_levels() const { return is_multilevel(workload().name); }

void add_train_options(CLI::App& app, TrainCommand& c) {
  add_workload_options(app, c.workload(), Levels::several);
  add_multilevel_options(app, c.task);
  add_planning_options(app, c.planning);
  app.add_option("--steps", c.steps, "Steps in all")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", c.rate, "Learning rate; default: the workload's own")
      ->check(FiniteNumber::not_negative());
  app.add_option("--warmup", c.warmup, "Steps over which the rate rises from 0")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--schedule", c.schedule, "How the rate goes on")
      ->check(CLI::IsMember({"constant", "cosine", "linear"}))
      ->capture_default_str();
  app.add_option("--eval-batches", c.eval_batches, "Test batches to judge the result by; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--overcommit", c.overcommit,
               "Start even if the plan is larger than the memory that is available");
  const char* outputs = "Outputs";
  app.add_option("--checkpoint", c.checkpoint,
                 "Folder to keep a checkpoint in, written at the end; it must not hold another "
                 "run's, unless --resume says so")
      ->type_name("DIR")
      ->group(outputs);
  app.add_option("--checkpoint-every", c.checkpoint_every, "Also every so many steps")
      ->check(CLI::PositiveNumber)
      ->group(outputs);
  app.add_option("--keep", c.keep,
                 "Checkpoints to keep, the newest; from 2 on also that of the lowest loss")
      ->check(CLI::Range(1, 1000000).description(""))
      ->capture_default_str()
      ->type_name("N")
      ->group(outputs);
  app.add_option("--resume", c.resume,
                 "Go on from the checkpoint in this folder, and keep it there; options that are "
                 "not given are the checkpoint's. auto: from the folder of --checkpoint, if it "
                 "holds one")
      ->type_name("DIR|auto")
      ->group(outputs);
  app.add_option("--change", c.change,
                 "Options, such as lr,batch, in which a resumed run may differ from what its "
                 "checkpoint says")
      ->delimiter(',')
      ->type_name("NAMES")
      ->needs("--resume")
      ->group(outputs);
  app.add_option("--save", c.save, "Write the model as a Hugging Face folder (gpt2, bert, llama)")
      ->type_name("DIR")
      ->group(outputs);
  app.add_option("--log", c.log, "Folder for JSON lines and TensorBoard logs")
      ->type_name("DIR")
      ->group(outputs);
}

workloads::TrainSpec spec_of(const TrainCommand& c) {
  workloads::TrainSpec s;
  const workloads::Options& w = c.workload();
  const PlanningOptions& p = c.planning;
  s.workload = w.name;
  fill_in_sizes(s, w);
  if (w.data) s.data = fs::absolute(*w.data).lexically_normal();
  s.seed = w.seed;
  s.optimizer = p.optimizer;
  s.lr = c.rate, s.clip = p.clip;
  s.schedule = c.schedule, s.clip_by = p.clip_by, s.accumulate = p.accumulate;
  s.warmup = c.warmup, s.steps = c.steps;
  s.precision = p.precision, s.rounding = p.rounding;
  s.loss_walks = p.loss_walks;
  s.master_bits = whole(p.master_bits), s.tf32 = p.tf32;
  s.device = p.device, s.budget = p.budget, s.recompute = p.recompute, s.lanes = whole(p.lanes);
  s.whole_process = p.whole_process, s.overcommit = c.overcommit;
  if (!p.without.empty()) s.without = fmt::format("{}", fmt::join(p.without, ","));
  s.huge_pages = p.machine.huge_pages, s.lock_memory = p.machine.lock_memory;
  s.pin_threads = p.machine.pin_threads;
  s.eval_batches = c.eval_batches, s.on_nan = p.on_nan;
  s.checkpoint_every = c.checkpoint_every, s.keep = c.keep;
  if (c.log) s.log = fs::absolute(*c.log).lexically_normal();
  if (!c.several_levels()) return s;
  s.classifier = c.task.classifier, s.imbalance = c.task.imbalance, s.meta = c.task.meta;
  for (const std::string& level : workloads::level_names(w.name)) {
    const auto found = c.task.levels.find(level);
    s.levels[level] =
        spec_of(found == c.task.levels.end() ? workloads::LevelOptions{} : found->second);
  }
  return s;
}

void apply(const workloads::TrainSpec& s, TrainCommand& c) {
  workloads::Options& w = c.workload();
  PlanningOptions& p = c.planning;
  w.name = s.workload;
  w.layers = s.layers, w.width = s.width, w.hidden = s.hidden, w.heads = s.heads;
  w.key_value_heads = s.key_value_heads, w.vocabulary = s.vocabulary, w.sequence = s.sequence;
  w.classes = s.classes, w.depth = s.depth, w.dropout = s.dropout;
  w.layout.reset();
  if (s.layout)
    w.layout = *s.layout == name(ImageLayout::channels_last) ? ImageLayout::channels_last
                                                             : ImageLayout::channels_first;
  w.data = s.data, w.batch = s.batch, w.seed = s.seed;
  p.optimizer = s.optimizer;
  c.rate = s.lr, p.clip = s.clip;
  c.schedule = s.schedule, p.clip_by = s.clip_by, p.accumulate = s.accumulate;
  c.warmup = s.warmup, c.steps = s.steps;
  p.precision = s.precision, p.rounding = s.rounding;
  p.loss_walks = s.loss_walks;
  p.master_bits = narrow(s.master_bits), p.tf32 = s.tf32;
  p.device = drivable_device(s.device), p.budget = s.budget, p.recompute = s.recompute;
  p.lanes = narrow(s.lanes);
  p.whole_process = s.whole_process, c.overcommit = s.overcommit;
  p.without = s.without ? CLI::detail::split(*s.without, ',') : std::vector<std::string>{};
  p.machine.huge_pages = s.huge_pages, p.machine.lock_memory = s.lock_memory;
  p.machine.pin_threads = s.pin_threads;
  c.eval_batches = s.eval_batches, p.on_nan = s.on_nan;
  c.checkpoint_every = s.checkpoint_every, c.keep = s.keep, c.log = s.log;
  c.task.classifier = s.classifier;
  if (s.imbalance) c.task.imbalance = *s.imbalance;
  if (s.meta) c.task.meta = *s.meta;
  for (const auto& [level, fields] : s.levels) c.task.levels[level] = options_of(fields);
}

void fill_in(workloads::TrainSpec& s, const workloads::Options& used,
             const optim::Optimizer& optimizer, std::int64_t accumulate) {
  fill_in_sizes(s, used);
  s.lr = optimizer.rate(), s.rule = optimizer.description();
  s.accumulate = std::to_string(accumulate);
}

void fill_in(workloads::TrainSpec& s, workloads::MultilevelWorkload& task) {
  fill_in_sizes(s, task.settings);
  s.classifier = task.classifier;
  const std::string highest = task.problems().back()->name();
  for (const mlo::Problem* problem : task.problems()) {
    workloads::LevelSpec& level = s.levels[problem->name()];
    const workloads::LevelSpec said = level;
    workloads::LevelOptions used = workloads::LevelOptions::used_by(*problem);
    if (problem->name() == highest)  // no level above differentiates through it or waits for it
      used.method.reset(), used.unroll.reset(), used.warmup.reset(), used.iterations.reset(),
          used.alpha.reset();
    level = spec_of(used);
    level.optimizer = said.optimizer, level.recompute = said.recompute, level.budget = said.budget;
    level.rule = problem->optimizer().description();
  }
}

bool typed(const CLI::App& app, const std::string& field) {
  const auto given = [&](const std::string& name) {
    const CLI::Option* option = app.get_option_no_throw("--" + name);
    return option && option->count() > 0;
  };
  if (given(field)) return true;
  const std::size_t dot = field.rfind('.');
  const std::string level = dot == std::string::npos ? "" : field.substr(0, dot + 1),
                    last = field.substr(dot == std::string::npos ? 0 : dot + 1);
  if (last == "lr" && given(level + "optimizer")) return true;
  if (level.empty()) return false;
  if (field == "classifier.method" && given("method")) return true;
  if (last == "alpha" || last == "iterations") return typed(app, level + "method");
  // Said for the whole, these go to every level.
  return (last == "precision" || last == "recompute" || last == "budget") && given(last);
}

}  // namespace ebb::cli
