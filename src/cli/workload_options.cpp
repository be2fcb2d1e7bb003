#include "cli/workload_options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/verb.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

void add_size(CLI::App& app, const char* name, std::optional<std::int64_t>& value,
              const char* help) {
  add_option(app, name, value, help).positive().group("Sizes");
}

void add_adapter_options(CLI::App& app, workloads::Options& options) {
  constexpr const char* group = "Adapters";
  add_option(app, "--lora", options.lora,
             "Train low-rank adapters of this rank instead of the weights (lm, gpt2, llama, bert, "
             "--model)")
      .positive()
      .type_name("RANK")
      .group(group);
  add_option(app, "--lora-alpha", options.lora_alpha,
             "Adapters are scaled by alpha / rank; default: twice the rank")
      .check(FiniteNumber::positive())
      .group(group);
  add_option(app, "--lora-dropout", options.lora_dropout,
             "Dropout probability of the adapters' inputs; default: 0")
      .check(FiniteNumber::between(0.0, 0.999))
      .group(group);
  app.add_option("--lora-modules", options.lora_modules,
                 "Layers that get adapters, joined by commas, such as \"*.q_proj,*.v_proj\"; "
                 "default: PEFT's choice")
      ->delimiter(',')
      ->type_name("PATTERNS")
      ->group(group);
  add_option(app, "--adapter", options.adapter,
             "Continue training the adapters of this folder in PEFT's format (--model)")
      .existing_folder()
      .type_name("DIR")
      .group(group);
  add_option(app, "--base", options.base,
             "Store frozen weights in few bits, or without the zeros of their pattern 2:4; "
             "default: in the dtype of --precision")
      .one_of({"int8", "int4", "nf4", "2:4"})
      .group(group);
  add_flag(app, "--merge", options.merge,
           "With --save: write the whole model, with adapters added to its weights (--model)")
      .group(group);
}

}  // namespace

std::vector<std::string> all_workload_names() {
  std::vector<std::string> names = workloads::workload_names();
  for (const std::string& name : workloads::multilevel_names()) names.push_back(name);
  return names;
}

void add_workload_options(CLI::App& app, workloads::Options& options, Levels levels) {
  const std::vector<std::string> names =
      levels == Levels::several ? all_workload_names() : workloads::workload_names();
  add_option(app, "--workload", options.name, "What to train").one_of(names).show_default();
  add_option(
      app, "--model",
      [&options](const std::string& folder) {
        options.model = folder, options.name = workloads::folder_workload;
      },
      "Train the model of this Hugging Face folder further on the text of --data, instead of a "
      "workload")
      .existing_folder()
      .type_name("DIR")
      .excludes("--workload");
  add_option(app, "--batch", options.batch, "Items in a batch").positive();
  add_option(
      app, "--data", options.data,
      "A folder or file (docs/training.md lists the formats); without it, data is generated. "
      "With --model: text, .jsonl with \"text\" or \"prompt\" and \"answer\", or a .bin of "
      "ebb tokenize; for classifiers .csv or .jsonl with labels")
      .existing_path();
  add_flag(app, "--pack", options.pack,
           "With --model and .jsonl: pack several short texts into one sequence; attention stays "
           "within each text");
  add_option(app, "--seed", options.seed, "Seed of weights, data and dropout")
      .check(seed_problem)
      .show_default();
  add_size(app, "--layers", options.layers, "Blocks or layers");
  add_size(app, "--width", options.width, "Width of the model");
  add_size(app, "--hidden", options.hidden, "Width of the feed-forward parts");
  add_size(app, "--heads", options.heads, "Attention heads");
  add_size(app, "--kv-heads", options.key_value_heads, "Heads of keys and values (llama)");
  add_size(app, "--vocabulary", options.vocabulary, "Different tokens");
  add_size(app, "--sequence", options.sequence, "Tokens in a sequence");
  add_size(app, "--classes", options.classes, "Classes");
  add_size(app, "--depth", options.depth, "Depth of a ResNet: 18, 32 or 50");
  add_option(app, "--tokens", options.tokens,
             "How tokens are read. Text files: bytes, or words split at white space; .bin files: "
             "uint16 (nanoGPT's) or int32. Default: bytes; words for ptb.*.txt; for .bin, decided "
             "by its first tokens")
      .one_of({"bytes", "words", "uint16", "int32"});
  add_option(app, "--labels-from", options.labels_from,
             "The number of the first class in a file: 0 or 1. Default: 1 in .csv, 0 in .jsonl")
      .between(0, 1)
      .type_name("N");
  add_option(app, "--image-size", options.image_size,
             "PNG and JPEG files are scaled to this many pixels a side; default: 32")
      .between(1, 1024)
      .type_name("N");
  const std::string first(name(ImageLayout::channels_first)),
      last(name(ImageLayout::channels_last));
  add_option(
      app, "--layout",
      [&options, last](const std::string& chosen) {
        options.layout = chosen == last ? ImageLayout::channels_last : ImageLayout::channels_first;
      },
      "Layout of images inside convolutional models; default: channels-last on a GPU with half "
      "precision or --tf32, otherwise channels-first")
      .one_of({first, last});
  add_adapter_options(app, options);
  add_option(app, "--dropout", options.dropout, "Dropout probability (lm, gpt2, llama, bert)")
      .check(FiniteNumber::between(0.0, 0.999))
      .group("Sizes");
}

std::string option_of(workloads::Setting setting) {
  if (setting == workloads::Setting::key_value_heads) return "--kv-heads";
  std::string option = fmt::format("--{}", name(setting));
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

namespace {

void refuse(const std::optional<workloads::Misfit>& wrong) {
  if (wrong) throw UsageError(fmt::format("{} {}", option_of(wrong->setting), wrong->why));
}

}  // namespace

void check_workload_options(const workloads::Options& options) {
  refuse(workloads::misfit(options));
}

void check_workload_options(const workloads::MultilevelOptions& options) {
  refuse(workloads::misfit(options));
  if (const auto wrong = workloads::level_misfit(options)) throw UsageError("--" + *wrong);
  if (!options.unweighted) return;
  // Values for the whole are passed on to these later.
  const std::vector<std::string> names = workloads::level_names(options.common.name);
  const auto highest = options.levels.find(names.back());
  if (highest == options.levels.end()) return;
  const workloads::LevelOptions& o = highest->second;
  for (const auto& [set, field] : {std::pair{o.precision.has_value(), "precision"},
                                   {o.recompute.has_value(), "recompute"},
                                   {o.budget.has_value(), "budget"}})
    if (set)
      throw UsageError(fmt::format("--{}.{} has no effect: --unweighted trains only the level {}",
                                   names.back(), field, names.front()));
}

}  // namespace ebb::cli
