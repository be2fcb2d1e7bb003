#include "cli/verb.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/list.h"
#include "cli/numbers.h"
#include "ebb/threads.h"

namespace ebb::cli {

#define EBB_DECLARE(name) std::unique_ptr<Verb> name##_verb();
EBB_VERBS(EBB_DECLARE)
#undef EBB_DECLARE

std::vector<std::unique_ptr<Verb>> all_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
#define EBB_ADD(name) verbs.push_back(name##_verb());
  EBB_VERBS(EBB_ADD)
#undef EBB_ADD
  return verbs;
}

CLI::App& Verb::attach(CLI::App& program) {
  CLI::App& app = *program.add_subcommand(name_, summary_);
  app.group("Verbs");
  app_ = &app;
  configure(app);
  app.add_flag("--json", json_, "Print one JSON document instead of text")->group("Shared options");
  app.add_option("--threads", threads_,
                 fmt::format("Threads of CPU kernels (default: {}, one a core)", physical_cores()))
      ->check(WholeNumber(1, 4096))
      ->type_name("N")
      ->group("Shared options");
  app.footer(fmt::format("Example:\n  {}", example_));
  return app;
}

int Verb::start() {
  if (threads_ > 0) set_threads(threads_);
  try {
    return run();
  } catch (const UsageError& error) {
    throw UsageError(located(error.what()));
  }
}

}  // namespace ebb::cli
