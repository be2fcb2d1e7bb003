#include "cli/print_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/config_file.h"
#include "cli/level_rules.h"
#include "cli/verb.h"
#include "cli/workload_options.h"
#include "core/toml.h"
#include "core/utf8.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_bytes(const std::string& key) {
  throw UsageError(fmt::format("--{}: its path is not UTF-8, which TOML cannot hold", key));
}

std::string toml_of(const std::string& key, const Json& value) {
  if (value.is_number_float()) return toml::number(value.get<double>());
  if (!value.is_string() && !value.is_array()) return value.dump();
  if (value.is_array()) {
    std::string texts;
    for (const Json& one : value) {
      if (!one.is_string()) refuse_bytes(key);  // of a path
      texts += (texts.empty() ? "" : ", ") + toml::quoted(one.get<std::string>());
    }
    return '[' + texts + ']';
  }
  const std::string text = value.get<std::string>();
  if (!is_utf8(text)) refuse_bytes(key);
  const bool whole = !text.empty() && text.size() < 19 &&
                     text.find_first_not_of("0123456789") == std::string::npos &&
                     (text[0] != '0' || text.size() == 1);
  return whole && config_keys().at(key) == KeyKind::text_or_whole ? text : toml::quoted(text);
}

class Printer {
 public:
  Printer(const CLI::App& app, const workloads::TrainSpec& spec) : app_(app), spec_(spec) {}

  std::string run(const TrainCommand& command) {
    Json values = Json::parse(workloads::to_json(spec_));
    TrainCommand::visit_beside(
        command, [&](const char* name, const auto& value) { values[name] = json_of(value); });
    for (const char* shared : {"threads", "json"}) {
      const CLI::Option* option = app_.get_option("--" + std::string(shared));
      if (option->count() > 0) values[shared] = Json::parse(option->results().front());
    }
    for (const CLI::Option* option : app_.get_options()) {
      const std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
      if (config_keys().contains(name) && name.find('.') == std::string::npos && applies(*option))
        add(*option, name, values.contains(name) ? values[name] : Json());
    }
    for (const Group& group : groups_)
      text_ += fmt::format("{}# --- {}\n{}", text_.empty() ? "" : "\n", group.name, group.lines);
    if (!workloads::is_multilevel(spec_.task.common.name)) return text_;
    for (const std::string& level : workloads::level_names(spec_.task.common.name))
      add_level(level, values["levels"][level]);
    return text_;
  }

 private:
  static Json json_of(const std::optional<std::filesystem::path>& path) {
    return path ? Json(std::filesystem::absolute(*path).lexically_normal().string()) : Json();
  }
  static Json json_of(const std::optional<std::int64_t>&) { return {}; }  // epochs become steps
  static Json json_of(const std::optional<std::string>& text) {
    return text ? Json(*text) : Json();
  }
  static Json json_of(const std::vector<std::string>& texts) {
    return texts.empty() ? Json() : Json(texts);
  }

  bool applies(const CLI::Option& option) const {
    const std::string name = option.get_lnames().front(), dashed = "--" + name;
    const bool several = workloads::is_multilevel(spec_.task.common.name);
    if (is_for_several_levels(option) && !several) return false;
    if (name == (spec_.task.common.model ? "workload" : "model")) return false;
    if (several && !is_for_whole_of_several(dashed)) return false;
    const auto used = [&](workloads::Setting setting) {
      return several ? uses(spec_.task, setting) : uses(spec_.task.common, setting);
    };
    if (name == "loss-walks") return used(workloads::Setting::fused_loss);
    for (int s = 0; s < workloads::setting_count; ++s)
      if (const auto setting = static_cast<workloads::Setting>(s); option_of(setting) == dashed)
        return used(setting);
    return true;
  }

  void add(const CLI::Option& option, const std::string& name, const Json& value) {
    const std::string group = option.get_group() == "Options" ? "Run" : option.get_group();
    auto place = std::find_if(groups_.begin(), groups_.end(),
                              [&](const Group& g) { return g.name == group; });
    if (place == groups_.end()) place = groups_.insert(place, {group, ""});
    const bool idle = name == "clip-by" && !spec_.planning.clip;
    if (value.is_null() || idle)
      place->lines += fmt::format("# {}: {}\n", name, option.get_description());
    else
      place->lines += fmt::format("{} = {}\n", toml::key(name), toml_of(name, value));
  }

  void add_level(const std::string& level, const Json& values) {
    text_ += fmt::format("\n[levels.{}]\n", toml::key(level));
    for (const auto& [name, value] : values.items()) {
      const CLI::Option* option = app_.get_option_no_throw(fmt::format("--{}.{}", level, name));
      if (!option || !applies_to_level(spec_.task.common.name, level, name)) continue;
      if (value.is_null())
        text_ += fmt::format("# {}: {}\n", name, option->get_description());
      else
        text_ += fmt::format("{} = {}\n", toml::key(name), toml_of(level + '.' + name, value));
    }
  }

  const CLI::App& app_;
  const workloads::TrainSpec& spec_;
  struct Group {
    std::string name, lines;
  };
  std::vector<Group> groups_;  // in the order of the help
  std::string text_;
};

}  // namespace

std::string config_text(const CLI::App& app, const TrainCommand& command,
                        const workloads::TrainSpec& spec) {
  return Printer(app, spec).run(command);
}

}  // namespace ebb::cli
