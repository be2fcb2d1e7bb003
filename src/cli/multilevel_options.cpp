#include "cli/multilevel_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "cli/accepted_by.h"
#include "cli/level_rules.h"
#include "cli/member_of.h"
#include "cli/numbers.h"
#include "ebb/error.h"
#include "ebb/optim/by_name.h"

namespace ebb::cli {
namespace {

// An option whose text the library parses; text that it cannot parse is a wrong command. `known`
// are the names for suggestions.
template <class Read>
CLI::Option* add_read(CLI::App& app, const std::string& name, const std::string& help,
                      const Read& read, std::vector<std::string> known = {}) {
  return app.add_option_function<std::string>(
      name,
      [name = name.substr(0, name.find(',')), read,
       known = std::move(known)](const std::string& text) {
        try {
          read(text);
        } catch (const Error& error) {
          throw CLI::ValidationError(name, quoting(error.what(), text) + did_you_mean(text, known));
        }
      },
      help);
}

template <class Names>
std::vector<std::string> texts(const Names& names) {
  return {std::begin(names), std::end(names)};
}

void add_level_options(CLI::App& app, const std::string& level, workloads::LevelOptions& o,
                       LevelSettings settings) {
  const std::string prefix = "--" + level + ".", group = std::string(level_group) + level;
  const auto count = [&](const char* name, std::optional<std::int64_t>& value, const char* help,
                         std::int64_t least, std::int64_t most) {
    app.add_option(prefix + name, value, help)->check(WholeNumber(least, most))->group(group);
  };
  constexpr std::int64_t most = 999999;  // these numbers decide how many nodes a step has
  const auto number = [&](const char* name, std::optional<double>& value, const char* help) {
    app.add_option(prefix + name, value, help)->check(FiniteNumber::not_negative())->group(group);
  };
  add_read(
      app, prefix + (level == "classifier" ? "method,--method" : "method"),
      "How levels above differentiate through it",
      [&o](const std::string& text) { o.method = mlo::method_by_name(text); },
      texts(mlo::method_names()))
      ->type_name("METHOD")
      ->group(group);
  count("unroll", o.unroll, "Updates per step of the levels above", 1, most);
  count("warmup", o.warmup, "Local steps before the levels above begin", 0, WholeNumber::no_limit);
  count("iterations", o.iterations, "Iterations of the methods neumann and cg", 0, most);
  number("alpha", o.alpha,
         "Width of the difference in parameters, or step size of the series, of the method");
  number("lr", o.rate, "Learning rate");
  app.add_option(prefix + "clip", o.clip,
                 "Scale gradients down to this global norm; default: no clipping")
      ->check(FiniteNumber::positive())
      ->group(group);
  add_read(
      app, prefix + "optimizer", fmt::format("{}", fmt::join(optim::names(), ", ")),
      [&o](const std::string& text) { optim::by_name(text), o.optimizer = text; },
      texts(optim::names()))
      ->type_name("NAME")
      ->group(group);
  if (settings == LevelSettings::problem) return;
  count("accumulate", o.accumulate, "Batches for each update", 1, most);
  add_read(
      app, prefix + "precision", "As --precision, for this level",
      [&o](const std::string& text) { o.precision = precision_by_name(text); }, precision_names())
      ->type_name("NAME")
      ->group(group);
  add_read(
      app, prefix + "recompute", "As --recompute, for this level",
      [&o](const std::string& text) { o.recompute = Recompute::parse(text); }, recompute_names())
      ->type_name("RULE")
      ->group(group);
  add_read(app, prefix + "budget",
           "Memory limit for everything while this level runs; default: --budget",
           [&o](const std::string& text) { o.budget = parse_bytes(text); })
      ->type_name("SIZE")
      ->group(group);
}

}  // namespace

void add_multilevel_options(CLI::App& app, workloads::MultilevelOptions& options,
                            LevelSettings settings) {
  const std::string group(several_group);
  app.add_option("--classifier", options.classifier,
                 fmt::format("The classifier that is trained on weighted data: {}",
                             fmt::join(workloads::classifier_names(), ", ")))
      ->check(member_of(workloads::classifier_names()))
      ->group(group);
  app.add_option("--imbalance", options.imbalance,
                 "How many times fewer items the rarest class gets than the most frequent one; "
                 "without this option a folder of image files is used as it is")
      ->check(FiniteNumber::between(1.0, 1e6))
      ->default_str(fmt::format("{}", workloads::usual_imbalance))
      ->group(group);
  app.add_option("--meta", options.meta,
                 "Items of the balanced set; for a folder of image files the default is, per "
                 "class, a tenth of the rarest class's items")
      ->check(WholeNumber(1))
      ->default_str(fmt::format("{}", workloads::usual_meta))
      ->group(group);
  if (settings == LevelSettings::all)
    app.add_flag("--unweighted", options.unweighted,
                 "The baseline: train the classifier alone, every item with the same weight")
        ->group(group);
  for (const std::string& workload : workloads::multilevel_names())
    for (const std::string& level : workloads::level_names(workload))
      add_level_options(app, level, options.levels[level], settings);
}

}  // namespace ebb::cli
