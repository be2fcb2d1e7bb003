// The command line: `ebb VERB options`, `ebb help [VERB]`, `ebb --version`. Results go to standard
// output, everything else to standard error; an error is one line and exit code 1, 2 when the
// command itself is wrong, or 3 when a run took more memory than its budget.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>

#include "cli/short_waits.h"
#include "cli/verb.h"
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

class Program {
 public:
  Program() : app_("ebb trains neural networks inside a memory budget.", "ebb") {
    app_.set_version_flag("--version", fmt::format("ebb {}", version()));
    app_.require_subcommand(0, 1);
    app_.footer(
        "`ebb help VERB` tells more about a verb.\nExit codes: 0 success, 1 failure, 2 wrong "
        "usage, "
        "3 a run took more memory than its budget.");
    app_.get_formatter()->column_width(34);
    app_.get_formatter()->label("SUBCOMMAND", "VERB");
    CLI::App& help = *app_.add_subcommand("help", "Show what ebb, or one of its verbs, can do");
    help.add_option("verb", topic_, "The verb to explain")->type_name("VERB");
    help.group("Verbs");
    help_ = &help;
    for (const auto& verb : verbs_) verb_apps_.push_back(&verb->attach(app_));
  }

  int run(int argc, char** argv) {
    if (argc > 1 && argv[1][0] != '-') find(argv[1]);  // a better message than the parser's
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& wanted) {  // --help, --version
      return app_.exit(wanted, std::cout, std::cerr);
    } catch (const CLI::ParseError& e) {
      throw UsageError(located(e.what()));
    }
    for (std::size_t i = 0; i < verbs_.size(); ++i)
      if (verb_apps_[i]->parsed()) return verbs_[i]->start();
    // Asked for the program's help, CLI11 would give that of the verb that was parsed: `help`.
    std::cout << (topic_.empty() ? app_.get_formatter()->make_help(&app_, app_.get_name(),
                                                                   CLI::AppFormatMode::Normal)
                                 : find(topic_)->help(app_.get_name()));
    return success;
  }

 private:
  // Of the verb that was typed.
  std::string located(const std::string& message) const {
    for (std::size_t i = 0; i < verbs_.size(); ++i)
      if (verb_apps_[i]->parsed()) return verbs_[i]->located(message);
    return message;
  }

  CLI::App* find(const std::string& name) const {
    if (name == help_->get_name()) return help_;
    for (CLI::App* app : verb_apps_)
      if (app->get_name() == name) return app;
    std::string names;
    for (const CLI::App* app : verb_apps_) names += (names.empty() ? "" : ", ") + app->get_name();
    throw UsageError(fmt::format("there is no verb \"{}\"; there are: {}", name, names));
  }

  CLI::App app_;
  CLI::App* help_ = nullptr;
  std::string topic_;
  std::vector<std::unique_ptr<Verb>> verbs_ = all_verbs();
  std::vector<CLI::App*> verb_apps_;  // of each verb
};

int run(int argc, char** argv) {
  try {
    const int code = Program().run(argc, argv);
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0)
      return report("cannot write to standard output", failure);
    return code;
  } catch (const UsageError& e) {
    // All ranks of `ebb launch` were given the same command: one says what is wrong with it.
    const char *launched = std::getenv("EBB_LAUNCH_TOKEN"), *rank = std::getenv("RANK");
    if (launched && rank && std::string_view(rank) != "0") return wrong_usage;
    return report(e.what(), wrong_usage);
  } catch (const std::bad_alloc&) {
    return report("out of memory", failure);
  } catch (const std::exception& e) {
    return report(e.what(), failure);
  }
}

}  // namespace
}  // namespace ebb::cli

int main(int argc, char** argv) {
  ebb::cli::restart_with_short_waits(argv);
  return ebb::cli::run(argc, argv);
}
