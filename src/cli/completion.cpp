// `ebb completion`: a script with which a shell completes verbs, options and their values. It is
// generated from the options themselves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/accepted_by.h"
#include "cli/verb.h"
#include "cli/workload_options.h"
#include "ebb/mlo/config.h"
#include "ebb/optim/by_name.h"
#include "ebb/passes.h"

namespace ebb::cli {
namespace {

struct Choice {
  std::string name, help;           // "--workload"
  std::vector<std::string> values;  // accepted values, if there is a list
  bool takes_value = false;
};

struct VerbChoices {
  std::string name, help;
  std::vector<Choice> options;
};

// The items between the braces of a list: "TEXT:{lm,gpt2}".
std::vector<std::string> listed(const std::string& type) {
  const std::size_t begin = type.find('{'), end = type.find('}');
  std::vector<std::string> values;
  if (begin == std::string::npos || end == std::string::npos) return values;
  std::string rest = type.substr(begin + 1, end - begin - 1);
  for (std::size_t at = 0; at <= rest.size();) {
    const std::size_t comma = std::min(rest.find(',', at), rest.size());
    values.push_back(rest.substr(at, comma - at));
    at = comma + 1;
  }
  return values;
}

// One line without characters that shells interpret.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text.substr(0, text.find('\n')))
    result += c == '\'' || c == '"' || c == '`' || c == '\\' || c == '$' ? ' '
              : c == '[' || c == ']' || c == ':'                         ? ' '
                                                                         : c;
  return result;
}

// The names that an option accepts if the library's own parser reads it. The option's name may be
// preceded by a level: "--classifier.method".
std::vector<std::string> known_values(const std::string& verb, const std::string& name) {
  const auto texts = [](const auto& names) {
    return std::vector<std::string>(std::begin(names), std::end(names));
  };
  const std::string last = name.substr(name.rfind('.') + 1);
  if (last == "precision" && verb != "eval" && verb != "generate") return precision_names();
  if (last == "recompute") return recompute_names();
  if (last == "optimizer") return texts(optim::names());
  if (last == "method") return texts(mlo::method_names());
  if (last == "without") return texts(all_pass_names());
  if (last == "device") return {"cpu", "cuda"};
  if (last == "workload") return all_workload_names();
  if (last == "budget" && name == last && verb != "fit" && verb != "generate") return {"least"};
  if (last == "accumulate" && name == last) return {"auto"};
  if (last == "resume" && verb == "train") return {"auto"};
  return {};
}

std::vector<VerbChoices> choices(const CLI::App& program) {
  std::vector<VerbChoices> all;
  for (const CLI::App* app : program.get_subcommands([](const CLI::App*) { return true; })) {
    VerbChoices verb{app->get_name(), plain(app->get_description()), {}};
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) {
        const bool takes_value = option->get_expected_min() > 0;
        std::vector<std::string> values = listed(option->get_type_name());
        if (values.empty() && takes_value) values = known_values(verb.name, name);
        verb.options.push_back(
            {"--" + name, plain(option->get_description()), std::move(values), takes_value});
      }
    all.push_back(std::move(verb));
  }
  return all;
}

std::string names_of(const std::vector<VerbChoices>& verbs) {
  std::vector<std::string> names;
  for (const VerbChoices& verb : verbs) names.push_back(verb.name);
  return fmt::format("{}", fmt::join(names, " "));
}

std::string names_of(const VerbChoices& verb) {
  std::vector<std::string> names;
  for (const Choice& option : verb.options) names.push_back(option.name);
  return fmt::format("{}", fmt::join(names, " "));
}

std::string bash(const std::vector<VerbChoices>& verbs) {
  std::string values, options;
  for (const VerbChoices& verb : verbs) {
    options += fmt::format("    {}) words='{}' ;;\n", verb.name, names_of(verb));
    for (const Choice& option : verb.options)
      if (!option.values.empty())
        values += fmt::format("    '{} {}') words='{}' ;;\n", verb.name, option.name,
                              fmt::join(option.values, " "));
  }
  return fmt::format(R"(# Completion of ebb for bash: . <(ebb completion bash)
_ebb() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} words=
  COMPREPLY=()
  # bash makes three words of --workload=gpt2.
  if [[ $current == '=' ]]; then current=; elif [[ $previous == '=' ]]; then previous=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  if ((COMP_CWORD == 1)) || [[ $verb == help && COMP_CWORD -eq 2 ]]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$current"))
    return
  fi
  case "$verb $previous" in
{}  esac
  if [[ -z $words && $current == -* ]]; then
    case "$verb" in
{}    esac
  fi
  [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _ebb ebb
)",
                     names_of(verbs), values, options);
}

std::string zsh(const std::vector<VerbChoices>& verbs) {
  std::string described, cases;
  for (const VerbChoices& verb : verbs) {
    described += fmt::format("    '{}:{}'\n", verb.name, verb.help);
    cases += fmt::format("    {}) _arguments '*:file:_files'", verb.name);
    for (const Choice& option : verb.options)
      cases += fmt::format(" \\\n        '{}[{}]{}'", option.name, option.help,
                           !option.values.empty()
                               ? fmt::format(":value:({})", fmt::join(option.values, " "))
                           : option.takes_value ? ":value:_files"
                                                : "");
    cases += " ;;\n";
  }
  return fmt::format(R"(#compdef ebb
# Completion of ebb for zsh: ebb completion zsh > a folder of $fpath/_ebb
_ebb() {{
  local -a verbs
  verbs=(
{}  )
  if ((CURRENT == 2)); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  ((CURRENT--))
  case $verb in
{}  esac
}}
compdef _ebb ebb
)",
                     described, cases);
}

std::string fish(const std::vector<VerbChoices>& verbs) {
  std::string text = "# Completion of ebb for fish: ebb completion fish | source\n";
  for (const VerbChoices& verb : verbs) {
    text += fmt::format("complete -c ebb -n __fish_use_subcommand -f -a {} -d '{}'\n", verb.name,
                        verb.help);
    for (const Choice& option : verb.options) {
      text += fmt::format("complete -c ebb -n '__fish_seen_subcommand_from {}' -l {} -d '{}'",
                          verb.name, option.name.substr(2), option.help);
      if (!option.values.empty())
        text += fmt::format(" -x -a '{}'", fmt::join(option.values, " "));
      else if (option.takes_value)
        text += " -r";
      text += '\n';
    }
  }
  return text;
}

class Completion : public Verb {
 public:
  Completion()
      : Verb("completion", "Print a script that completes ebb's words in a shell",
             "ebb completion bash > ~/.local/share/bash-completion/completions/ebb") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "shell", shell_, "Which shell").required().one_of({"bash", "zsh", "fish"});
  }

  int run() override {
    const std::vector<VerbChoices> verbs = choices(*app().get_parent());
    std::cout << (shell_ == "bash" ? bash(verbs) : shell_ == "zsh" ? zsh(verbs) : fish(verbs));
    return success;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Verb> completion_verb() { return std::make_unique<Completion>(); }

}  // namespace ebb::cli
