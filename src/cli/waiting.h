// Says on a terminal that something takes long, such as planning: one line on standard error, from
// the first second on, that disappears when it is over. Ctrl-C ends the process meanwhile, with a
// line that says so. Where standard error is no terminal it writes nothing.
#pragma once

#include <csignal>
#include <memory>
#include <string>

namespace ebb::cli {

class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // What is done now, after the name of the whole: "batch 128".
  void say(std::string detail);

 private:
  struct State;
  std::unique_ptr<State> state_;  // none where there is no terminal
};

}  // namespace ebb::cli
