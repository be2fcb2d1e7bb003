// `ebb fit`: how large a step fits into a budget, and what less memory costs in time.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "cli/accepted_by.h"
#include "cli/budget_errors.h"
#include "cli/curve.h"
#include "cli/evaluation.h"
#include "cli/generation.h"
#include "cli/level_rules.h"
#include "cli/multilevel_options.h"
#include "cli/multilevel_verbs.h"
#include "cli/options.h"
#include "cli/planning.h"
#include "cli/process_memory.h"
#include "cli/recompute_rules.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "cli/workload_options.h"
#include "core/json.h"
#include "ebb/error.h"
#include "ebb/workloads/settings.h"
#include "ops/fp8/fp8.h"

namespace ebb::cli {
namespace {

class Fit : public Verb {
 public:
  Fit()
      : Verb("fit", "Find the largest batch, sequence or depth that fits a budget",
             "ebb fit --workload lm --budget 100MiB") {}

 protected:
  void configure(CLI::App& app) override {
    // The size that is searched for is not taken from the file.
    config_.attach(app, [this](const CLI::App& typed, const std::string& key) {
      return key == given_text(typed, "--vary", vary_);
    });
    add_workload_options(app, workload_, Levels::several);
    add_multilevel_options(app, multilevel_);
    add_planning_options(app, planning_);
    remove_running_options(app);
    // "least" would fit any size, so this verb accepts only a size in bytes.
    remove_option(app, "--budget");
    add_option(app, "--budget", planning_.budget, "Memory limit of the step, such as 2GiB or 300MB")
        .required()
        .check(accepted_by([](const std::string& text) {
          if (text == "least")
            throw ValueError(
                "fit needs a size, such as --budget 2GiB: every step fits into its least budget");
          parse_bytes(text);
        }))
        .type_name("SIZE")
        .group("Memory");
    add_flag(app, "--generate", generate_,
             "Instead of a training step: find how many sequences fit when --model generates text");
    add_option(app, "--max-tokens", max_tokens_,
               "Tokens of each sequence, prompt included; default: the model's context")
        .positive()
        .needs("--generate");
    bits_.add_options(app);
    for (const char* name : {"--bits", "--cache-bits"}) option(app, name).needs("--generate");
    add_option(app, "--vary", vary_, "What to make as large as possible")
        .one_of({"batch", "sequence", "layers"})
        .show_default();
    add_option(app, "--most", most_, "No larger than this").positive().show_default();
    add_option(app, "--points", points_, "Budgets on the curve of peak against time")
        .between(2, 100)
        .show_default();
  }

  int run() override {
    planning_.only_plans = true;
    if (generate_) return run_generation();
    multilevel_.common = workload_;
    check_options();
    rates_ = rates_for(planning_);
    if (several()) return run_levels();
    beside_ = {evaluation_keeps(workload_, planning_),
               planning_.whole_process ? fixed_cost_of(workload_, planning_) : Bytes{},
               process_resident()};
    compile_ =
        compile_options(planning_, workload_.seed, rates_, beside_.fixed, beside_.evaluation);
    std::optional<Waiting> waiting(std::in_place, "planning");
    const std::int64_t largest = find_largest(*waiting);
    const std::vector<CurvePoint> curve =
        whole(frontier_curve(graph_of(largest), compile_, points_, telling(*waiting)));
    const Plan plan = plan_program(graph_of(largest), compile_);
    require_recomputation(planning_, workload_.name, plan);
    waiting.reset();
    if (json())
      print_json(largest, plan, curve);
    else
      print(largest, plan, curve);
    return success;
  }

 private:
  int run_generation() const {
    const std::string model = given_text(app(), "--model", "");
    if (model.empty()) throw UsageError("--generate needs --model FOLDER");
    static const std::set<std::string> used{
        "--generate", "--model", "--budget", "--max-tokens", "--device",    "--precision",
        "--most",     "--json",  "--config", "--bits",       "--cache-bits"};
    for (const CLI::Option* option : app().get_options())
      if (option->count() > 0 && !used.contains(option->get_name()))
        throw UsageError(fmt::format("{} is only for training steps: leave it out with --generate",
                                     option->get_name()));
    if (!named_device(planning_.device))
      throw UsageError(fmt::format("--generate takes --device cpu, cuda or cuda:N, but {} came",
                                   planning_.device));
    const std::string precision = planning_.precision;
    if (precision != "fp32" && precision != "bf16" && precision != "fp16")
      throw UsageError(
          fmt::format("--generate takes --precision fp32, bf16 or fp16, but {} came", precision));
    return fit_generation({.model = model,
                           .precision = precision,
                           .device = planning_.device,
                           .bits = bits_,
                           .budget = parse_bytes(*planning_.budget),
                           .tokens = max_tokens_,
                           .most = most_},
                          json());
  }

  // Budgets as the user types them: for the step and everything beside it.
  std::vector<CurvePoint> whole(std::vector<CurvePoint> curve) const {
    for (CurvePoint& point : curve) point.budget += beside_.total();
    return curve;
  }

  bool several() const { return workloads::is_multilevel(workload_.name); }

  BeforePlan telling(Waiting& waiting) const {
    return [&waiting, of = points_](int made) { return waiting.say_points(made, of), true; };
  }

  int run_levels() {
    beside_ = {kept_by_evaluation(multilevel_, planning_), fixed_cost(multilevel_, planning_)};
    std::optional<Waiting> waiting(std::in_place, "planning");
    const std::int64_t largest = find_largest(*waiting);
    const std::vector<CurvePoint> curve = whole(frontier_curve(
        plannable_levels(sized_levels(largest), planning_, rates_), points_, telling(*waiting)));
    const mlo::Engine::WholePlan plan =
        plan_levels(sized_levels(largest), planning_, rates_, beside_);
    require_recomputation(planning_, multilevel_, plan);
    waiting.reset();
    if (!json()) {
      print(largest, plan_summary(plan), curve);
      return success;
    }
    print_json(largest, plan_fields(plan), curve);
    return success;
  }

  void check_options() const {
    if (several()) {
      check_workload_options(multilevel_);
    } else {
      refuse_multilevel_options(app(), workload_.name);
      check_workload_options(workload_);
    }
    const std::string option = "--" + vary_;
    if (given(app(), option))
      throw UsageError(fmt::format(
          "{} is the size that --vary {} searches for: leave out one of them", option, vary_));
    if (const auto wrong =
            several() ? workloads::misfit(sized_levels(2)) : workloads::misfit(sized(2)))
      throw UsageError(fmt::format("--vary {}: {} {}", vary_, option, wrong->why));
  }

  workloads::Options sized(std::int64_t size) const {
    workloads::Options options = workload_;
    (vary_ == "batch"      ? options.batch
     : vary_ == "sequence" ? options.sequence
                           : options.layers) = size;
    return options;
  }

  workloads::MultilevelOptions sized_levels(std::int64_t size) const {
    workloads::MultilevelOptions options = multilevel_;
    options.common = sized(size);
    return options;
  }

  Graph graph_of(std::int64_t size) const {
    const workloads::Options options = sized(size);
    return trace_workload(options, planning_, accumulation(options, planning_, compile_)).graph;
  }

  bool fits(std::int64_t size) {
    try {
      if (several()) {
        plan_levels(sized_levels(size), planning_, rates_, beside_);
        return true;
      }
      return try_plan_program(graph_of(size), compile_).plan.has_value();
    } catch (const ValueError& error) {  // the data or the model limits the size
      ends_ = error.what();
      return false;
    } catch (const MemoryError&) {  // the error of a level names it
      return false;
    }
  }

  // The smallest possible size: a batch has one item per micro-batch; a sequence has a token to
  // begin with and one to predict.
  std::int64_t smallest() const {
    if (vary_ == "batch" && planning_.accumulate != "auto") return std::stoll(planning_.accumulate);
    return vary_ == "sequence" ? 2 : 1;
  }

  // The search is among multiples of this. In fp8 the rows of a product, which are the tokens of a
  // micro-batch, must be a multiple of fp8_unit; other sizes are errors, not the end of the search.
  std::int64_t step_of_sizes() const {
    const bool in_fp8 = precision_by_name(planning_.precision) == Precision::fp8;
    if (!in_fp8 || several() || vary_ == "layers") return 1;
    const workloads::Options made =
        workloads::make_workload(placed(sized(smallest()), planning_))->settings;
    const std::int64_t parts =
        planning_.accumulate == "auto" ? 1 : std::stoll(planning_.accumulate);
    const auto step_beside = [](std::int64_t other) {
      return fp8_unit / std::gcd(fp8_unit, other);
    };
    if (vary_ == "batch") {
      const std::int64_t items = step_beside(made.sequence.value_or(1));  // of a micro-batch
      return items == 1 ? 1 : parts * items;
    }
    // Micro-batches of two sizes have no common factor.
    const std::int64_t batch = made.batch.value_or(1);
    return batch % parts != 0 ? fp8_unit : step_beside(batch / parts);
  }

  // A batch contains no item twice.
  std::int64_t items_to_train_on() {
    items_ = several()
                 ? workloads::make_multilevel(resolved(sized_levels(smallest()), planning_, {}))
                       ->parts.at("train")
                       .items
                 : workloads::make_workload(placed(sized(smallest()), planning_))->train->size();
    return items_;
  }

  // Doubles until it no longer fits, then halves the interval.
  std::int64_t find_largest(Waiting& waiting) {
    const std::int64_t step = step_of_sizes(), least = (smallest() + step - 1) / step * step;
    if (vary_ == "batch") most_ = std::min(most_, items_to_train_on());
    if (least > most_)
      throw UsageError(
          fmt::format("--most {} is less than the smallest {}, which is {}{}", most_, vary_, least,
                      step > 1 ? fmt::format("; fp8 needs multiples of {}", step) : ""));
    const std::int64_t most = most_ / step;
    most_ = most * step;
    const auto fits = [&](std::int64_t steps) {
      waiting.say(fmt::format("{} {}", vary_, steps * step));
      return this->fits(steps * step);
    };
    std::int64_t good = least / step;
    if (!fits(good)) {  // tries once more, to throw its error
      if (several()) plan_levels(sized_levels(least), planning_, rates_, beside_);
      plan_or_explain(sized(least), planning_, graph_of(least), compile_, beside_);
    }
    while (good <= most / 2 && fits(good * 2)) good *= 2;
    std::int64_t bad = good <= most / 2 ? good * 2 : most + 1;
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (fits(middle) ? good : bad) = middle;
    }
    return good * step;
  }

  void print_json(std::int64_t largest, const Plan& plan,
                  const std::vector<CurvePoint>& curve) const {
    print_json(largest, plan_fields(plan), curve);
  }
  void print(std::int64_t largest, const Plan& plan, const std::vector<CurvePoint>& curve) const {
    print(largest, plan_summary(plan), curve);
  }

  void print_json(std::int64_t largest, const nlohmann::ordered_json& plan,
                  const std::vector<CurvePoint>& curve) const {
    nlohmann::ordered_json result{{"workload", workload_.name},
                                  {"device", rates_.name},
                                  {"budget_bytes", parse_bytes(*planning_.budget).count},
                                  {"vary", vary_},
                                  {"largest", largest}};
    if (ends_) result["larger_cannot_be_made"] = *ends_;
    if (largest == items_) result["whole_data_set"] = true;
    result.update(plan);
    result["curve"] = to_json(curve);
    std::cout << json_text(result) << "\n";
  }

  void print(std::int64_t largest, const std::string& plan,
             const std::vector<CurvePoint>& curve) const {
    fmt::print("{}: the largest {} within {} is {}{}\n{}\n", workload_.name, vary_,
               to_string(parse_bytes(*planning_.budget)), largest,
               largest == items_  ? ", all items of the training data"
               : largest == most_ ? ", the most that was tried"
               : ends_            ? fmt::format("; larger ones are not possible: {}", *ends_)
                                  : "",
               plan);
    fmt::print("at that size, the time that less memory costs\n{}", to_table(curve));
  }

  workloads::Options workload_;
  workloads::MultilevelOptions multilevel_;
  PlanningOptions planning_;
  bool generate_ = false;
  std::optional<std::int64_t> max_tokens_;
  GenerationBits bits_;
  std::string vary_ = "batch";
  std::int64_t most_ = 65536;
  std::int64_t items_ = 0;  // for training, once they are counted
  int points_ = 8;
  std::optional<std::string> ends_;  // why larger sizes are impossible with any budget
  Rates rates_;
  Beside beside_;
  CompileOptions compile_;
};

}  // namespace

std::unique_ptr<Verb> fit_verb() { return std::make_unique<Fit>(); }

}  // namespace ebb::cli
