// `ebb ablate`: what each technique saves and costs, alone and together, on one workload. Every
// row trains the same samples from the same weights.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/ablate/published.h"
#include "cli/ablate/results.h"
#include "cli/ablate/study.h"
#include "cli/accepted_by.h"
#include "cli/curve.h"
#include "cli/did_you_mean.h"
#include "cli/interrupt.h"
#include "cli/level_rules.h"
#include "cli/memory_check.h"
#include "cli/multilevel_options.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/run_facts.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "cli/workload_options.h"
#include "core/json.h"
#include "ebb/report/progress.h"
#include "ebb/threads.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const RowSpec& row) {
  std::vector<std::string> names;
  for (const Technique* t : row.techniques) names.emplace_back(t->name);
  for (const std::string& pass : row.without) names.push_back("without " + pass);
  return names;
}

class Ablate : public Verb {
 public:
  Ablate()
      : Verb("ablate", "Measure what each technique saves and costs, and show it on a page",
             "ebb ablate --workload gpt2 --out study") {
    workload_.common.name = "gpt2";
  }

 protected:
  void configure(CLI::App& app) override {
    add_workload_options(app, workload_.common, Levels::several);
    add_multilevel_options(app, workload_, LevelSettings::problem);
    add_option(app, "--device", options_.planning.device, "cpu, cuda or cuda:N")
        .check([](const std::string& text) -> std::string {
          return named_device(text) ? ""
                                    : fmt::format("\"{}\" is neither cpu nor cuda{}", text,
                                                  did_you_mean(text, {"cpu", "cuda"}));
        })
        .transform(drivable_device)
        .show_default();
    add_option(app, "--techniques", techniques_, technique_help()).type_name("ROWS");
    add_without_option(app, options_.planning);
    add_option(app, "--runs", runs_, "Runs of every row, which take turns")
        .between(1, 1000)
        .show_default();
    add_option(app, "--steps", steps_, "Steps of a run; default: 8, or 20 on a GPU").positive();
    add_option(app, "--items", items_, "Train on the first so many items only").positive();
    add_option(app, "--epochs", epochs_, "In place of --steps: passes over the items")
        .positive()
        .needs("--items")
        .excludes("--steps");
    add_option(app, "--accumulate", accumulate_,
               "Micro-batches of the row \"accumulate\"; default: 4, or fewer for small batches")
        .positive();
    add_option(app, "--budget", budget_,
               "Bytes for the row \"auto\"; default: what the row \"blocks\" takes")
        .check(accepted_by([](const std::string& text) { parse_bytes(text); }))
        .type_name("SIZE");
    add_option(app, "--points", points_, "Budgets on the curves of peak against time; 0: no curves")
        .between(0, 100)
        .show_default();
    add_option(app, "--out", out_, "Folder for the table, the data and the page")
        .type_name("DIR")
        .show_default();
    add_overcommit_option(app, options_.overcommit);
    add_flag(app, "--resume", resume_, "Go on with the study in that folder");
  }

  int run() override {
    const TriedFolder tried(out_);
    prepare();
    const Interrupt interrupt;
    measure(interrupt);
    if (points_ > 1) add_curves(interrupt);
    const bool ended_early = interrupt.asked();
    save(results_, out_);
    if (json())
      std::cout << json_text(to_json(results_)) << "\n";
    else
      fmt::print("{}\n{}\n", to_table(results_), farewell(ended_early));
    if (ended_early) return 128 + interrupt.signal();
    if (std::none_of(results_.rows.begin(), results_.rows.end(), std::mem_fn(&Row::done)))
      throw Error("no row could be measured: " + results_.rows.front().error.value_or("no run"));
    return success;
  }

 private:
  static std::string technique_help() {
    std::string text =
        "Rows to measure beside the baseline, joined by commas; techniques in a row "
        "are joined by +. \"defaults\" is what ebb does unless told otherwise, "
        "\"all\" is everything together. A row that ends in -PASS leaves a pass out, as in "
        "defaults-join_relu; \"passes\" is such a row for each of them:";
    for (const Technique& t : techniques()) text += fmt::format("\n{}: {}", t.name, t.about);
    return text;
  }

  void prepare() {
    workload_.common.device = device_of(options_.planning);
    if (is_multilevel(workload_.common.name)) {
      check_workload_options(workload_);
    } else {
      refuse_multilevel_options(app(), workload_.common.name);
      check_workload_options(workload_.common);
    }
    fill_in_sizes(workload_);
    if (budget_) options_.techniques.budget = parse_bytes(*budget_);
    std::unique_ptr<Subject> subject = make_subject();
    subject->traits.device = workload_.common.device.kind;
    // The largest number of equal parts up to the usual one.
    std::int64_t& parts = options_.techniques.accumulate;
    while (subject->batch % parts != 0) --parts;
    parts = accumulate_.value_or(parts);
    check_accumulation(parts, subject->batch);
    subject->traits.cuts_batch = parts > 1;
    rows_ = techniques_ ? parse_rows(*techniques_, subject->traits)
                        : applicable_rows(study_rows(workload_.common.name), subject->traits);
    if (given(app(), "--points")) check_points();
    require_row(budget_.has_value(), "--budget", "auto");
    require_row(accumulate_.has_value(), "--accumulate", "accumulate");
    const bool on_cuda = workload_.common.device.kind == Device::Kind::cuda;
    options_.steps = steps_.value_or(on_cuda ? 20 : 8);
    if (epochs_) options_.steps = steps_of_epochs(*epochs_, *items_ / subject->batch);
    check_count(subject->batch);
    const Rates rates = rates_for(options_.planning);
    study_.emplace(std::move(subject), options_, rates);
    results_.facts = run_facts(rates.name);
    // The command that makes the whole study.
    std::string command = results_.facts["command"];
    if (const std::size_t at = command.find(" --resume"); at != std::string::npos)
      command.erase(at, std::string_view(" --resume").size());
    results_.facts["command"] = command;
    results_.settings = settings();
    if (resume_) kept_ = load_rows(out_, results_.settings);
    for (const RowSpec& spec : rows_) {
      Row row{spec.name, names_of(spec)};
      for (const Row& old : kept_)
        if (old.name == spec.name) row = old;
      results_.rows.push_back(std::move(row));
    }
  }

  void check_points() const {
    if (points_ == 1)
      throw UsageError("--points 1 is no curve: it takes 2 to 100, or 0 for no curves");
    const auto has_curve = [](const RowSpec& row) {
      return row.name == "defaults" || row.name == "all";
    };
    if (points_ > 0 && std::none_of(rows_.begin(), rows_.end(), has_curve))
      throw UsageError(
          "--points is for the curves of the rows defaults and all, but there is none: add one to "
          "--techniques");
  }

  // Samples of a run and steps of the study are counted too.
  void check_count(std::int64_t batch) const {
    const std::int64_t runs = runs_ * static_cast<std::int64_t>(rows_.size());
    if (std::int64_t unused = 0;
        __builtin_mul_overflow(options_.steps, std::max(batch, runs), &unused))
      throw UsageError(
          fmt::format("{} steps of {} samples in each of {} runs are more than can be counted",
                      options_.steps, batch, runs));
  }

  // An option that is for rows with a technique needs such a row.
  void require_row(bool given, const char* option, std::string_view technique) const {
    const auto has = [&](const RowSpec& row) {
      return std::any_of(row.techniques.begin(), row.techniques.end(),
                         [&](const Technique* t) { return t->name == technique; });
    };
    if (given && std::none_of(rows_.begin(), rows_.end(), has))
      throw UsageError(fmt::format("{} is for rows with the technique {}, but there is none",
                                   option, technique));
  }

  std::unique_ptr<Subject> make_subject() const {
    if (!is_multilevel(workload_.common.name))
      return single_level_subject(workload_.common, items_);
    if (items_)
      throw UsageError(
          fmt::format("{} draws from two sets of items, which --items does not tell "
                      "apart",
                      workload_.common.name));
    return multilevel_subject(workload_);
  }

  Json settings() const {
    const Subject& subject = study_->subject();
    Json all{{"workload", workload_.common.name},
             {"device", options_.planning.device},
             {"threads", threads()},
             {"parameters", subject.parameters},
             {"batch", subject.batch},
             {"steps", options_.steps},
             {"samples", options_.steps * subject.batch},
             {"accumulate", options_.techniques.accumulate}};
    all.update(subject.settings);
    if (!options_.planning.without.empty()) all["without"] = options_.planning.without;
    if (options_.techniques.budget) all["budget_bytes"] = options_.techniques.budget->count;
    return all;
  }

  // Rows take turns, so that what else the machine does falls on all alike.
  void measure(const Interrupt& interrupt) {
    std::int64_t total = 0, done = 0;
    for (const Row& row : results_.rows)
      total += std::max<std::int64_t>(0, runs_ - static_cast<std::int64_t>(row.run_ms.size()));
    report::Progress progress(total * options_.steps, {.label = workload_.common.name});
    for (int turn = 1; turn <= runs_; ++turn)
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        Row& row = results_.rows[i];
        if (interrupt.asked()) return;
        if (row.error || static_cast<int>(row.run_ms.size()) >= turn) continue;
        progress.relabel(fmt::format("{}, run {} of {}", row.name, turn, runs_));
        std::int64_t step = done;
        try {
          const auto run = study_->run(rows_[i], [&](double loss, Bytes peak) {
            progress.update(++step, loss, peak);
            return !interrupt.asked();
          });
          if (!run) return;
          add(row, *run);
        } catch (const Error& error) {  // one row that cannot be is no reason to lose the others
          row.error = error.what();
        }
        done += options_.steps;
        save_rows(results_, out_);
      }
  }

  static void add(Row& row, const Run& run) {
    // On a GPU the first run also loads code; what the driver holds for the step is the least.
    if (!row.done() || run.measured.total < row.measured.total) row.measured = run.measured;
    if (row.done() && !same_losses(row.losses, run.losses))
      throw Error("two runs from the same seed gave different losses: this is a fault in ebb");
    row.planned = run.planned;
    row.losses = run.losses;
    row.run_ms.push_back(run.step_ms);
  }

  // Automatic plans for ebb's defaults and for everything together, at several budgets. Predicted
  // times are scaled to what the row itself took.
  void add_curves(const Interrupt& interrupt) {
    Waiting waiting("planning", Waiting::CtrlC::is_left_alone);
    const auto before = [&](int made) {
      waiting.say_points(made, points_);
      return !interrupt.asked();
    };
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = results_.rows[i];
      if ((row.name != "defaults" && row.name != "all") || !row.done()) continue;
      const double scale = row.median_ms() / row.planned.predicted_ms;
      Json points = cli::to_json(study_->curve(rows_[i], points_, before));
      if (interrupt.asked()) return;
      for (Json& point : points)
        point["step_ms"] = point["predicted_step_ms"].get<double>() * scale;
      results_.curves.push_back({row.name, points});
    }
  }

  std::string farewell(bool ended_early) const {
    const fs::path page = out_ / "report.html";
    if (!ended_early)
      return fmt::format("{}; also results.md, results.csv and results.json there", page.string());
    return fmt::format("ended early; --resume goes on. What is done: {}", page.string());
  }

  workloads::MultilevelOptions workload_;  // those of one level use only what is common
  StudyOptions options_;
  std::optional<std::string> techniques_, budget_;
  std::optional<std::int64_t> steps_, items_, epochs_, accumulate_;
  int runs_ = 3, points_ = 8;
  fs::path out_ = "ablation";
  bool resume_ = false;

  std::vector<RowSpec> rows_;
  std::vector<Row> kept_;
  std::optional<Study> study_;
  Results results_;
};

}  // namespace

std::unique_ptr<Verb> ablate_verb() { return std::make_unique<Ablate>(); }

}  // namespace ebb::cli
