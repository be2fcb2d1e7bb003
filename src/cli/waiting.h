// Shows on a terminal that something takes long, such as planning: one line on standard error after
// the first second, which disappears at the end. Ctrl-C then ends the process with a line that says
// so, unless an Interrupt handles it. Nothing is written if standard error is not a terminal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ebb::cli {

class Waiting {
 public:
  enum class CtrlC : std::uint8_t { ends_the_process, is_left_alone };

  explicit Waiting(std::string what, CtrlC ctrl_c = CtrlC::ends_the_process);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // The current part of the work, after the name of the whole: "batch 128".
  void say(std::string detail);
  // The same for points of a curve: "the curve, 3 of 8 budgets".
  void say_points(int made, int of);

 private:
  struct State;
  std::unique_ptr<State> state_;  // null if there is no terminal
};

}  // namespace ebb::cli
