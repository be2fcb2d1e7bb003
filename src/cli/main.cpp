// The command line: `ebb VERB options`, `ebb help [VERB]`, `ebb --version`. Results go to standard
// output, everything else to standard error; an error is one line and exit code 1, 2 when the
// command itself is wrong, or 3 when a run took more memory than its budget.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <system_error>
#include <typeinfo>

#include "cli/did_you_mean.h"
#include "cli/help_defaults.h"
#include "cli/ranks.h"
#include "cli/run_command.h"
#include "cli/short_waits.h"
#include "cli/verb.h"
#include "ebb/communicator.h"
#include "ebb/version.h"

namespace ebb::cli {
namespace {

int report(std::string_view message, int exit_code) {
  std::string line(message);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::cout.flush();
  std::cerr << "ebb: error: " << line << std::endl;
  return exit_code;
}

// Standard output is a pipe whose reader has ended first, as in `ebb help | head -n 1`.
bool reader_is_gone() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

// Without a message, and with the code that a shell shows for a program ended by SIGPIPE.
constexpr int without_reader = 128 + SIGPIPE;

class CommandLine {
 public:
  CommandLine() : app_("ebb trains neural networks inside a memory budget.", "ebb") {
    app_.set_version_flag("--version", fmt::format("ebb {}", version()));
    app_.require_subcommand(0, 1);
    app_.footer(
        "`ebb help VERB` describes a verb and its options.\nExit codes: 0 success, 1 failure, 2 "
        "wrong usage, 3 a run took more memory than its budget.");
    app_.get_formatter()->column_width(34);
    app_.get_formatter()->label("SUBCOMMAND", "VERB");
    CLI::App& help =
        *app_.add_subcommand("help", "Describe ebb, or one of its verbs with its options");
    help.add_option("verb", topic_, "The verb to explain")->type_name("VERB");
    help.add_option("--workload", workload_, "Also show the defaults of this workload")
        ->type_name("NAME");
    help.group("Verbs");
    help_ = &help;
    for (const auto& verb : verbs_) verb_apps_.push_back(&verb->attach(app_));
  }

  int run(int argc, char** argv) {
    if (argc > 1 && argv[1][0] != '-') find(argv[1]);  // for a better message than the parser's
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& wanted) {            // --help, --version
      const CLI::App* verb = typed_verb(argc, argv);  // none for --version
      const std::string defaults =
          verb ? defaults_text(*verb, typed_workload(argc, argv)) : std::string();
      const int code = app_.exit(wanted, std::cout, std::cerr);
      std::cout << defaults;
      return code;
    } catch (const CLI::ExtrasError&) {
      throw UsageError(unexpected());
    } catch (const CLI::RequiredError& e) {
      // A mistyped option is reported before the required one that is then missing.
      throw UsageError(app_.remaining(true).empty() ? located(required(e.what())) : unexpected());
    } catch (const CLI::ArgumentMismatch& e) {
      throw UsageError(located(missing_value(e.what())));
    } catch (const CLI::ParseError& e) {
      throw UsageError(located(e.what()));
    }
    for (std::size_t i = 0; i < verbs_.size(); ++i)
      if (verb_apps_[i]->parsed()) return verbs_[i]->start();
    // For the whole program's help, CLI11 would print that of the parsed verb, `help`.
    const std::string defaults = topic_.empty() ? "" : defaults_text(*find(topic_), workload_);
    if (topic_.empty())
      std::cout << app_.get_formatter()->make_help(&app_, app_.get_name(),
                                                   CLI::AppFormatMode::Normal);
    else
      std::cout << find(topic_)->help(app_.get_name()) << defaults;
    return success;
  }

 private:
  // A message about the verb that was typed.
  std::string located(const std::string& message) const {
    for (std::size_t i = 0; i < verbs_.size(); ++i)
      if (verb_apps_[i]->parsed()) return verbs_[i]->located(message);
    return message;
  }

  const CLI::App* typed_verb(int argc, char** argv) const {
    for (const CLI::App* app : verb_apps_)
      if (argc > 1 && app->get_name() == argv[1]) return app;
    return nullptr;
  }

  // Parsing ends at --help, before the options have their values.
  static std::string typed_workload(int argc, char** argv) {
    const std::string option = "--workload";
    for (int i = 2; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == option && i + 1 < argc) return argv[i + 1];
      if (word.starts_with(option + "=")) return word.substr(option.size() + 1);
    }
    return {};
  }

  // Rewrites the parser's "runs is required".
  std::string required(const std::string& message) const {
    const std::string name = message.substr(0, message.find(' '));
    const CLI::App& verb = parsed_verb();
    const CLI::Option* option = verb.get_option_no_throw(name);
    if (!option) return message;
    return fmt::format("ebb {} needs {}{}: {}", verb.get_name(),
                       option->get_positional() ? "" : name + " ", option->get_type_name(),
                       option->get_description());
  }

  // Rewrites the parser's "--workload: 1 required TEXT:{...} missing", for an option at the end of
  // the command or before another option; or its message for an option that was given twice.
  std::string missing_value(const std::string& message) const {
    const std::string name = message.substr(0, message.find(':'));
    const CLI::Option* option = parsed_verb().get_option_no_throw(name);
    if (!option || option->get_expected_min() == 0) return message;
    if (option->count() > static_cast<std::size_t>(option->get_expected_max()))
      return fmt::format("{} is given {} times; give it once", name, option->count());
    const std::string type = option->get_type_name();  // "NAME:{a,b}" where there is a list
    const std::size_t list = type.find('{');
    if (list == std::string::npos)
      return fmt::format("{} needs a value{}", name, type.empty() ? "" : ": " + type);
    std::string values = type.substr(list + 1, type.find('}') - list - 1);
    for (std::size_t at = 0; (at = values.find(',', at)) != std::string::npos; at += 2)
      values.replace(at, 1, ", ");
    return fmt::format("{} needs a value, one of {}", name, values);
  }

  // The verb that was typed; without one, the program.
  const CLI::App& parsed_verb() const {
    if (help_->parsed()) return *help_;
    for (const CLI::App* app : verb_apps_)
      if (app->parsed()) return *app;
    return app_;
  }

  // The typed word that is not an option or argument of the verb.
  std::string unexpected() const {
    const CLI::App* verb = &parsed_verb();
    const std::vector<std::string> words = app_.remaining(true);
    if (words.empty()) return "the command has words that no option takes";
    const std::string word = words.front(), name = word.substr(0, word.find('='));
    if (!word.starts_with('-'))
      return fmt::format(
          "\"{}\" is not an option of {}, and no option before it takes it as a value", word,
          verb == &app_ ? "ebb" : "ebb " + verb->get_name());
    std::vector<std::string> known;
    for (const CLI::Option* option : verb->get_options())
      for (const std::string& one : option->get_lnames()) known.push_back("--" + one);
    return fmt::format("there is no option {} of {}{}", name,
                       verb == &app_ ? "ebb" : "ebb " + verb->get_name(),
                       did_you_mean(name, known));
  }

  CLI::App* find(const std::string& name) const {
    if (name == help_->get_name()) return help_;
    for (CLI::App* app : verb_apps_)
      if (app->get_name() == name) return app;
    std::vector<std::string> names{help_->get_name()};
    for (const CLI::App* app : verb_apps_) names.push_back(app->get_name());
    throw UsageError(fmt::format("there is no verb \"{}\"; there are: {}{}", name,
                                 fmt::join(names, ", "), did_you_mean(name, names)));
  }

  CLI::App app_;
  CLI::App* help_ = nullptr;
  std::string topic_, workload_;
  std::vector<std::unique_ptr<Verb>> verbs_ = all_verbs();
  std::vector<CLI::App*> verb_apps_;  // of each verb
};

int run(int argc, char** argv) {
  try {
    const int code = CommandLine().run(argc, argv);
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0)
      return reader_is_gone() ? without_reader : report("cannot write to standard output", failure);
    return code;
  } catch (const UsageError& e) {
    // All ranks of `ebb launch` get the same command, so only one of them reports a mistake in it.
    const char *launched = std::getenv("EBB_LAUNCH_TOKEN"), *rank = std::getenv("RANK");
    if (launched && rank && std::string_view(rank) != "0") return wrong_usage;
    if (ThreadRank::here() && ThreadRank::here()->rank() != 0) return wrong_usage;
    return report(e.what(), wrong_usage);
  } catch (const std::bad_alloc&) {
    return report("out of memory", failure);
  } catch (const RankError& e) {
    // Ends at once: a thread may still be in a library that waits for the lost rank, and the other
    // ranks rely on the end of this process. Ranks that are threads inform each other.
    report(e.what(), failure);
    if (ThreadRank::here()) return failure;
    std::cout.flush(), std::fflush(stdout);
    std::_Exit(failure);
  } catch (const Error& e) {
    return report(e.what(), failure);
  } catch (const std::filesystem::filesystem_error& e) {
    return report(fmt::format("{}: {}", e.path1().string(), e.code().message()), failure);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::broken_pipe && reader_is_gone()) return without_reader;
    return report(e.code().message(), failure);
  } catch (const std::exception& e) {
    // Readers of files report errors that name the file and the field. Any other exception is a
    // mistake in ebb, and the texts of the standard library's exceptions do not help a user.
    return report(fmt::format("a defect in ebb ended the command ({}); please report it, with the "
                              "command and its files",
                              typeid(e).name()),
                  failure);
  }
}

}  // namespace

int run_command(std::vector<std::string> words) {
  words.insert(words.begin(), "ebb");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return run(static_cast<int>(words.size()), arguments.data());
}

}  // namespace ebb::cli

int main(int argc, char** argv) {
  // A file that exceeds a limit (ulimit -f) is then an error of the write, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  // So is output that nobody reads any more: it must not end a run before its checkpoint.
  std::signal(SIGPIPE, SIG_IGN);
  ebb::cli::restart_with_short_waits(argv);
  return ebb::cli::run(argc, argv);
}
