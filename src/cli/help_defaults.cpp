#include "cli/help_defaults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/did_you_mean.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "cli/workload_options.h"

namespace ebb::cli {
namespace {

using Json = nlohmann::ordered_json;

// A specification with all defaults of a workload.
workloads::TrainSpec defaults_of(const std::string& name) {
  workloads::TrainSpec spec;
  spec.task.common.name = name;
  if (workloads::is_multilevel(name)) {
    fill_in(spec, *workloads::make_multilevel(spec.task));
  } else {
    const auto task = workloads::make_workload(spec.task.common);
    fill_in(spec, *task, task->optimizer());
  }
  return spec;
}

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// True if the option's own line shows its default, or a number that is the verb's default and not
// the workload's.
bool tells_default(const CLI::Option& option) {
  constexpr std::string_view mark = "; default: ";
  const std::string text = option.get_description();
  const std::size_t at = text.find(mark);
  const bool number = at != std::string::npos && at + mark.size() < text.size() &&
                      std::isdigit(static_cast<unsigned char>(text[at + mark.size()]));
  return number || !option.get_default_str().empty();
}

void add_lines(const CLI::App& verb, const Json& fields, const std::string& prefix,
               std::string& text) {
  for (const auto& [name, value] : fields.items()) {
    if (name == "optimizer.rule" && value.is_string() && !shown(value).empty())
      text += fmt::format("  {:<24} {}\n", "--" + prefix + "optimizer", shown(value));
    const CLI::Option* option = verb.get_option_no_throw("--" + prefix + name);
    if (!option || value.is_null() || tells_default(*option) || value.is_boolean() ||
        value.is_array() || value.is_object() || name == "workload" || name == "clip-by")
      continue;
    text += fmt::format("  {:<24} {}\n", "--" + prefix + name, shown(value));
  }
}

}  // namespace

std::string defaults_text(const CLI::App& verb, const std::string& workload) {
  const CLI::Option* option = verb.get_option_no_throw("--workload");
  if (!option || verb.get_name() == "help") return {};
  const std::vector<std::string> known = all_workload_names();
  const std::string verbs_own = option->get_default_str();
  const std::string name = !workload.empty()    ? workload
                           : !verbs_own.empty() ? verbs_own
                                                : workloads::Options{}.name;
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw UsageError(fmt::format("there is no workload \"{}\"; there are: {}{}", name,
                                 fmt::join(known, ", "), did_you_mean(name, known)));
  const Json fields = Json::parse(workloads::to_json(defaults_of(name)));
  std::string text = fmt::format("\nDefaults of the workload {}:\n", name);
  add_lines(verb, fields, "", text);
  for (const auto& [level, own] : fields["levels"].items()) add_lines(verb, own, level + ".", text);
  if (workload.empty())
    text += fmt::format("`ebb help {} --workload NAME` shows those of {}.\n", verb.get_name(),
                        fmt::join(known, ", "));
  return text;
}

}  // namespace ebb::cli
