#include "cli/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/did_you_mean.h"
#include "cli/member_of.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "data/file.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

template <class T>
constexpr KeyKind kind_of(const T&) {
  if constexpr (std::is_same_v<T, bool>) return KeyKind::truth;
  if constexpr (std::is_same_v<T, Bytes>) return KeyKind::text_or_whole;
  if constexpr (std::is_integral_v<T>) return KeyKind::whole;
  if constexpr (std::is_floating_point_v<T>) return KeyKind::number;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return KeyKind::texts;
  return KeyKind::text;
}
template <class T>
constexpr KeyKind kind_of(const std::optional<T>&) {
  return kind_of(T{});
}

std::string_view expected(KeyKind kind) {
  constexpr std::string_view texts[] = {
      "true or false",      "a whole number", "a number", "a string", "a string or a whole number",
      "an array of strings"};
  return texts[static_cast<std::size_t>(kind)];
}

// The value as it would be typed; nothing if its type is wrong.
std::optional<std::vector<std::string>> typed_texts(const toml::Value& value, KeyKind kind) {
  std::vector<std::string> texts;
  if (kind == KeyKind::texts) {
    const auto* values = value.as<std::vector<toml::Value>>();
    if (!values) return {};
    for (const toml::Value& one : *values) {
      if (!one.as<std::string>()) return {};
      texts.push_back(*one.as<std::string>());
    }
    return texts;
  }
  const bool whole_fits =
      kind == KeyKind::whole || kind == KeyKind::number || kind == KeyKind::text_or_whole;
  const bool text_fits = kind == KeyKind::text || kind == KeyKind::text_or_whole;
  if (const auto* truth = value.as<bool>(); truth && kind == KeyKind::truth)
    return {{*truth ? "true" : "false"}};
  if (const auto* number = value.as<std::int64_t>(); number && whole_fits)
    return {{std::to_string(*number)}};
  if (const auto* number = value.as<std::uint64_t>(); number && whole_fits)
    return {{std::to_string(*number)}};
  if (const auto* number = value.as<double>(); number && kind == KeyKind::number)
    return {{toml::number(*number)}};
  if (const auto* text = value.as<std::string>(); text && text_fits) return {{*text}};
  return {};
}

std::map<std::string, KeyKind> make_keys() {
  std::map<std::string, KeyKind> keys{
      {"method", KeyKind::text}, {"threads", KeyKind::whole}, {"json", KeyKind::truth}};
  const auto add_to = [&keys](const std::string& prefix) {
    return [&keys, prefix](const std::string& name, const auto& value, auto&&...) {
      if (!name.ends_with(".rule")) keys[prefix + name] = kind_of(value);
    };
  };
  const TrainCommand command;
  const workloads::LevelOptions level_options;
  const std::string rule;
  workloads::TrainSpec::visit(command, add_to(""));
  TrainCommand::visit_beside(command, add_to(""));
  for (const std::string& workload : workloads::multilevel_names())
    for (const std::string& level : workloads::level_names(workload))
      workloads::TrainSpec::visit_level(level_options, rule, add_to(level + "."));
  // Sizes, counts or a word.
  for (const char* name : {"accumulate", "loss-walks", "budget", "shard"})
    keys[name] = KeyKind::text_or_whole;
  return keys;
}

}  // namespace

const std::map<std::string, KeyKind>& config_keys() {
  static const std::map<std::string, KeyKind> keys = make_keys();
  return keys;
}

void ConfigFile::attach(CLI::App& app, Skips skips) {
  skips_ = std::move(skips);
  app.add_option_function<std::string>(
         "--config", [this, &app](const std::string& path) { read(app, path); },
         "Take options from this TOML file; options on the command line override it")
      ->check(existing_file_at())
      ->type_name("FILE");
}

void ConfigFile::read(CLI::App& app, const fs::path& path) {
  path_ = path.string();
  constexpr std::int64_t most = 1 << 20;  // bytes
  toml::Table table;
  try {
    table = toml::parse(data::File(path).text(most), path_);
  } catch (const ValueError& error) {
    throw UsageError(error.what());
  }
  for (const toml::Entry& entry : table.entries()) {
    if (entry.key != "levels") {
      take(app, entry.key, entry);
      continue;
    }
    const auto* levels = entry.value.as<toml::Table>();
    if (!levels) fail(entry.at, "levels holds a table for each level: [levels.NAME]");
    for (const toml::Entry& level : levels->entries()) take_level(app, level);
  }
}

void ConfigFile::take_level(CLI::App& app, const toml::Entry& level) {
  std::vector<std::string> known;
  for (const std::string& workload : workloads::multilevel_names())
    for (const std::string& name : workloads::level_names(workload)) known.push_back(name);
  if (std::find(known.begin(), known.end(), level.key) == known.end())
    fail(level.at,
         fmt::format("there is no level \"{}\"; there are: {}", level.key, fmt::join(known, ", ")));
  const auto* settings = level.value.as<toml::Table>();
  if (!settings)
    fail(level.at,
         fmt::format("levels.{} must be a table, but is {}", level.key, level.value.kind()));
  for (const toml::Entry& entry : settings->entries())
    take(app, level.key + '.' + entry.key, entry);
}

void ConfigFile::take(CLI::App& app, const std::string& name, const toml::Entry& entry) {
  const auto key = config_keys().find(name);
  if (key == config_keys().end()) {
    std::vector<std::string> known;
    for (const auto& [one, kind] : config_keys()) known.push_back(one);
    fail(entry.at, fmt::format("there is no key \"{}\"; keys are the options that \"ebb help "
                               "train\" lists, those of levels in tables [levels.NAME]{}",
                               name, did_you_mean(name, known)));
  }
  const auto texts = typed_texts(entry.value, key->second);
  if (!texts)
    fail(entry.at,
         fmt::format("{} must be {}, but is {}", name, expected(key->second), entry.value.kind()));
  CLI::Option* option = app.get_option_no_throw("--" + name);
  // Two options that set the length of a run: the typed one wins.
  const std::string twin = name == "steps" ? "epochs" : name == "epochs" ? "steps" : "";
  const CLI::Option* same = twin.empty() ? nullptr : app.get_option_no_throw("--" + twin);
  if (same && same->count() > 0 && !given_.contains(same)) return;
  if (!option || (skips_ && skips_(app, name))) return;
  if (given_.contains(option))
    fail(entry.at, fmt::format("{} is given a second time: it is another name of {}", name,
                               option->get_name()));
  if (option->count() > 0) return;  // was typed
  given_.insert(option);
  for (const std::string& other : option->get_lnames()) lines_["--" + other] = entry.at.line;
  try {
    for (const std::string& text : *texts) option->add_result(text);
    if (!texts->empty()) option->run_callback();
  } catch (const CLI::ParseError& error) {
    fail(entry.at, error.what());
  }
}

void ConfigFile::fail(toml::Position at, const std::string& what) const {
  throw UsageError(fmt::format("{}:{}: {}", path_, at.line, what));
}

std::string ConfigFile::located(const std::string& message) const {
  if (lines_.empty() || message.starts_with(path_)) return message;
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  for (std::size_t at = message.find("--"); at != std::string::npos; at = message.find("--", at)) {
    std::size_t end = at;
    while (end < message.size() && in_name(message[end])) ++end;
    const auto line = lines_.find(message.substr(at, end - at));
    if (line != lines_.end()) return fmt::format("{}:{}: {}", path_, line->second, message);
    at = end;
  }
  return message;
}

}  // namespace ebb::cli
