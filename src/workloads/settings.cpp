#include "ebb/workloads/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "ebb/data/image_folder.h"
#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "workloads/families.h"

namespace ebb::workloads {
namespace {

// The condition under which a workload uses a setting.
enum class When : std::uint8_t {
  always,
  generated,      // only with generated data: files determine it
  not_bytes,      // not with a file read as bytes, which has 256 tokens
  hidden_layers,  // only if the perceptron has hidden layers: one layer has none
  files,          // only with data from files
  images,         // only with a folder of PNG and JPEG files
  no_hidden,      // as hidden_layers, and only if `hidden`, the same size, is not given too
  next_token,     // only if the folder's model predicts the next token
  classifies,     // only if it does not
  lora,           // only with new adapters
  no_adapter,     // not with adapters from a folder
  adapters,       // only with adapters, new ones or from a folder
};

struct Use {
  Setting setting;
  When when = When::always;
};

// The settings of a workload, or of a workload with a certain classifier.
struct UsedSettings {
  std::string_view workload, classifier;
  std::vector<Use> uses;
};

const std::vector<UsedSettings>& all_used_settings() {
  using enum Setting;
  static const std::vector<Use> perceptron{{layers},
                                           {width, When::no_hidden},
                                           {hidden, When::hidden_layers},
                                           {classes, When::generated},
                                           {image_size, When::images}};
  static const std::vector<Use> residual{
      {classes, When::generated}, {layout}, {image_size, When::images}};
  static const std::vector<UsedSettings> all{
      {"lm",
       "",
       {{layers},
        {width},
        {hidden},
        {heads},
        {vocabulary, When::not_bytes},
        {sequence},
        {dropout},
        {lora},
        {lora_alpha, When::lora},
        {lora_dropout, When::lora},
        {lora_modules, When::lora},
        {base, When::adapters},
        {fused_loss},
        {tokens, When::files}}},
      {"gpt2",
       "",
       {{layers},
        {width},
        {heads},
        {vocabulary, When::not_bytes},
        {sequence},
        {dropout},
        {lora},
        {lora_alpha, When::lora},
        {lora_dropout, When::lora},
        {lora_modules, When::lora},
        {base, When::adapters},
        {fused_loss},
        {tokens, When::files}}},
      {"llama",
       "",
       {{layers},
        {width},
        {hidden},
        {heads},
        {key_value_heads},
        {vocabulary, When::not_bytes},
        {sequence},
        {dropout},
        {lora},
        {lora_alpha, When::lora},
        {lora_dropout, When::lora},
        {lora_modules, When::lora},
        {base, When::adapters},
        {fused_loss},
        {tokens, When::files}}},
      {"bert",
       "",
       {{layers},
        {width},
        {hidden},
        {heads},
        {vocabulary},
        {sequence},
        {classes},
        {dropout},
        {lora},
        {lora_alpha, When::lora},
        {lora_dropout, When::lora},
        {lora_modules, When::lora},
        {base, When::adapters},
        {labels_from, When::files}}},
      {folder_workload,
       "",
       {{sequence},
        {pack, When::next_token},
        {lora, When::no_adapter},
        {lora_alpha, When::lora},
        {lora_dropout, When::lora},
        {lora_modules, When::lora},
        {adapter},
        {base, When::adapters},
        {merge, When::adapters},
        {fused_loss, When::next_token},
        {tokens, When::next_token},
        {labels_from, When::classifies}}},
      {"resnet", "", {{classes, When::generated}, {depth}, {layout}, {image_size, When::images}}},
      {"mlp", "", perceptron},
      {"reweight", "mlp", perceptron},
      {"reweight", "resnet32", residual},
      {"reweight", "resnet50", residual},
  };
  return all;
}

bool given(const Options& o, Setting setting) {
  switch (setting) {
    case Setting::layers:
      return o.layers.has_value();
    case Setting::width:
      return o.width.has_value();
    case Setting::hidden:
      return o.hidden.has_value();
    case Setting::heads:
      return o.heads.has_value();
    case Setting::key_value_heads:
      return o.key_value_heads.has_value();
    case Setting::vocabulary:
      return o.vocabulary.has_value();
    case Setting::sequence:
      return o.sequence.has_value();
    case Setting::classes:
      return o.classes.has_value();
    case Setting::depth:
      return o.depth.has_value();
    case Setting::dropout:
      return o.dropout.has_value();
    case Setting::layout:
      return o.layout.has_value();
    case Setting::pack:
      return o.pack;
    case Setting::lora:
      return o.lora.has_value();
    case Setting::lora_alpha:
      return o.lora_alpha.has_value();
    case Setting::lora_dropout:
      return o.lora_dropout.has_value();
    case Setting::lora_modules:
      return !o.lora_modules.empty();
    case Setting::adapter:
      return o.adapter.has_value();
    case Setting::base:
      return o.base.has_value();
    case Setting::merge:
      return o.merge;
    case Setting::fused_loss:
      return !o.fused_loss;
    case Setting::tokens:
      return o.tokens.has_value();
    case Setting::labels_from:
      return o.labels_from.has_value();
    case Setting::image_size:
      return o.image_size.has_value();
  }
  return false;
}

// The reason why a condition does not hold; empty if it holds.
std::string unmet(When when, const Options& o) {
  switch (when) {
    case When::always:
      return {};
    case When::generated:
      return o.data ? "is of generated data; files say it themselves" : "";
    case When::not_bytes:
      return o.data && read_as_bytes(o)
                 ? fmt::format(
                       "does not apply to {}, which is read as bytes: 256 tokens; with the "
                       "option tokens as words it would",
                       o.data->string())
                 : "";
    case When::files:
      return o.data ? "" : "says how files are read, and generated data is not from files";
    case When::images:
      return o.data && data::is_image_folder(*o.data)
                 ? ""
                 : "is for a folder of PNG and JPEG files with a folder for each class";
    case When::hidden_layers:
      return o.layers == 1 ? "does not apply to a perceptron of one layer" : "";
    case When::no_hidden:
      if (o.hidden) return "and hidden are the same size of a perceptron: give one of them";
      return unmet(When::hidden_layers, o);
    case When::next_token:
      return o.model && !io::predicts_next_token(*o.model)
                 ? "is for models that predict the next token, and the folder's does not"
                 : "";
    case When::classifies:
      return o.model && io::predicts_next_token(*o.model)
                 ? "is for classifiers, and the folder's model is none"
                 : "";
    case When::lora:
      return o.lora ? "" : "is of new adapters: give lora, their rank, too";
    case When::no_adapter:
      return o.adapter ? "makes new adapters, but adapter names those to go on from" : "";
    case When::adapters:
      return o.lora || o.adapter ? "" : "is for training adapters: give lora, their rank, too";
  }
  return {};
}

const UsedSettings& row_of(std::string_view workload, std::string_view classifier) {
  for (const UsedSettings& row : all_used_settings())
    if (row.workload == workload && row.classifier == classifier) return row;
  throw ValueError(classifier.empty()
                       ? fmt::format("there is no workload \"{}\"", workload)
                       : fmt::format("{} has no classifier \"{}\"", workload, classifier));
}

const Use* use_of(const UsedSettings& row, Setting setting) {
  for (const Use& use : row.uses)
    if (use.setting == setting) return &use;
  return nullptr;
}

bool uses(const Options& options, const UsedSettings& row, Setting setting) {
  const Use* use = use_of(row, setting);
  return use && unmet(use->when, options).empty();
}

std::optional<Misfit> misfit(const Options& options, const UsedSettings& row) {
  for (int s = 0; s < setting_count; ++s) {
    const Setting setting = static_cast<Setting>(s);
    // Studies ask every workload for the plain loss. A workload without a fused loss has only that
    // one, so the setting is never a misfit.
    if (!given(options, setting) || setting == Setting::fused_loss) continue;
    const Use* use = use_of(row, setting);
    if (!use && row.workload == folder_workload)
      return Misfit{setting, "does not apply to a model from a folder: its config.json says it"};
    if (!use)
      return Misfit{
          setting,
          fmt::format(
              "does not apply to {}{}; it is for {}", row.workload,
              row.classifier.empty() ? "" : fmt::format(" with the classifier {}", row.classifier),
              fmt::join(users_of(setting), ", "))};
    if (std::string why = unmet(use->when, options); !why.empty())
      return Misfit{setting, std::move(why)};
  }
  return {};
}

}  // namespace

std::string_view name(Setting setting) {
  constexpr std::array<std::string_view, setting_count> names{
      "layers",   "width",      "hidden",       "heads",        "key_value_heads", "vocabulary",
      "sequence", "classes",    "depth",        "dropout",      "layout",          "pack",
      "lora",     "lora_alpha", "lora_dropout", "lora_modules", "adapter",         "base",
      "merge",    "fused_loss", "tokens",       "labels_from",  "image_size"};
  return names[static_cast<std::size_t>(setting)];
}

bool uses(const Options& options, Setting setting) {
  return uses(options, row_of(options.name, ""), setting);
}
bool uses(const MultilevelOptions& options, Setting setting) {
  return uses(options.common, row_of(options.common.name, classifier_of(options)), setting);
}

std::vector<std::string> users_of(Setting setting) {
  std::vector<std::string> names;
  for (const UsedSettings& row : all_used_settings())
    if (use_of(row, setting))
      names.push_back(row.workload == folder_workload ? "--model"
                      : row.classifier.empty()
                          ? std::string(row.workload)
                          : fmt::format("{} with {}", row.workload, row.classifier));
  return names;
}

std::optional<Misfit> misfit(const Options& options) {
  return misfit(options, row_of(options.name, ""));
}
std::optional<Misfit> misfit(const MultilevelOptions& options) {
  return misfit(options.common, row_of(options.common.name, classifier_of(options)));
}

std::optional<std::string> level_misfit(const MultilevelOptions& options) {
  const std::vector<std::string> names = level_names(options.common.name);
  for (const auto& [level, o] : options.levels) {
    if (std::find(names.begin(), names.end(), level) == names.end())
      return fmt::format("{} has no level \"{}\"; there are: {}", options.common.name, level,
                         fmt::join(names, ", "));
    if (options.unweighted)
      for (const auto& [set, field] : {std::pair{o.method.has_value(), "method"},
                                       {o.unroll.has_value(), "unroll"},
                                       {o.warmup.has_value(), "warmup"},
                                       {o.iterations.has_value(), "iterations"},
                                       {o.alpha.has_value(), "alpha"},
                                       {level == names.back() && o.rate, "lr"},
                                       {level == names.back() && o.clip, "clip"},
                                       {level == names.back() && o.optimizer, "optimizer"},
                                       {level == names.back() && o.accumulate, "accumulate"}})
        if (set)
          return fmt::format("{}.{} has no effect: unweighted trains only the level {}", level,
                             field, names.front());
    const mlo::Method method = o.method.value_or(mlo::Config{}.type);
    const bool iterates = method == mlo::Method::neumann || method == mlo::Method::cg;
    if (level == names.back())  // no level above differentiates through it or waits for it
      for (const auto& [set, field] : {std::pair{o.method.has_value(), "method"},
                                       {o.unroll.has_value(), "unroll"},
                                       {o.warmup.has_value(), "warmup"},
                                       {o.iterations.has_value(), "iterations"},
                                       {o.alpha.has_value(), "alpha"}})
        if (set)
          return fmt::format(
              "{}.{} has no effect: it is for levels above, and there is none above "
              "{}",
              level, field, level);
    if (o.iterations && !iterates)
      return fmt::format("{}.iterations is of the methods neumann and cg, but the method is {}",
                         level, mlo::name(method));
    if (o.alpha && method == mlo::Method::unrolled)
      return fmt::format("{}.alpha has no effect: the method unrolled has none", level);
  }
  return {};
}

}  // namespace ebb::workloads
