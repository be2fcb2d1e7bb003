// Copies of variables, to roll back to.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "ebb/program.h"
#include "ebb/variable.h"

namespace ebb::mlo {

class Snapshot {
 public:
  explicit Snapshot(CompileOptions compile) : compile_(std::move(compile)) {}

  // The variable that holds the value `live` had; made when first asked for.
  Variable copy_of(const Variable& live);
  const std::unordered_map<Tensor, Variable>& copies() const { return copies_; }

  void take(const std::vector<Variable>& live);
  void restore(const std::vector<Variable>& live);

 private:
  // A copying program, valid while the set of variables does not change.
  struct Copying {
    std::vector<Variable> live;
    std::unique_ptr<Program> program;
  };
  enum class Direction : bool { save, load };
  void run(Copying& copying, const std::vector<Variable>& live, Direction direction);

  CompileOptions compile_;
  std::unordered_map<Tensor, Variable> copies_;
  Copying save_, load_;
};

}  // namespace ebb::mlo
