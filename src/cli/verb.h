// A verb of the command line, such as `ebb info`. Each has a file of its own that defines
//
//   std::unique_ptr<Verb> NAME_verb();
//
// and a line in list.h. Options all verbs share (--json, --threads) are added and applied here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/config_file.h"
#include "cli/options.h"
#include "ebb/error.h"

namespace ebb::cli {

// Exit codes of the program. over_budget: the work was done, but took more memory than its budget.
inline constexpr int success = 0, failure = 1, wrong_usage = 2, over_budget = 3;

// The command line makes no sense, such as options that contradict each other. Exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

class Verb {
 public:
  Verb(std::string name, std::string summary, std::string example)
      : name_(std::move(name)), summary_(std::move(summary)), example_(std::move(example)) {}
  virtual ~Verb() = default;

  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }  // one line, no full stop
  const std::string& example() const { return example_; }  // a command that works as it stands

  // Adds the verb to the program, with the shared options and its own.
  CLI::App& attach(CLI::App& program);

  // Applies the shared options and runs; the result is the exit code.
  int start();

  // A message about options, preceded by the place in the file if an option came from one
  // (ConfigFile::located).
  std::string located(const std::string& message) const { return config_.located(message); }

 protected:
  // Adds this verb's own options, bound to members.
  virtual void configure(CLI::App& app) = 0;

  // Does the work. Errors are thrown (ebb::Error and what it derives from, UsageError); the program
  // prints them.
  virtual int run() = 0;

  // For verbs that take options from a file: `configure` must call `config_.attach` first.
  ConfigFile config_;

  // The parsed command line.
  const CLI::App& app() const { return *app_; }

  // Whether results go to standard output as one JSON document instead of as text for people.
  bool json() const { return json_; }

 private:
  std::string name_, summary_, example_;
  const CLI::App* app_ = nullptr;
  bool json_ = false;
  int threads_ = 0;  // 0: the library's default
};

// Every verb, in the order the help shows them.
std::vector<std::unique_ptr<Verb>> all_verbs();

}  // namespace ebb::cli
