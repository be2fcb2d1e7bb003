// Where a step's memory goes: live bytes over its instructions by category and by module, the
// tensors live at the peak, and the bytes and time of recomputation.
#pragma once

#include <string>
#include <vector>

#include "ebb/plan.h"

namespace ebb::report {

struct LiveTensor {
  std::string path, op;
  Category category = Category::activations;
  Bytes bytes;
  int first = 0, last = 0;  // instructions; persistent tensors have the whole step
};

struct ModuleBytes {
  std::string path;
  CategoryBytes bytes;  // live at the peak
};

// Decisions of one kind: the same op at the same place of every block.
struct DecisionGroup {
  std::string path;  // block numbers written as *: "h.*.mlp"
  std::string op;
  int count = 0;
  Bytes bytes;      // freed in total
  double ms = 0.0;  // to compute them again
};

struct MemoryProfile {
  std::vector<CategoryBytes> live;  // of every instruction, persistent bytes included
  int peak_instruction = 0;
  std::vector<LiveTensor> at_peak;       // largest first
  std::vector<ModuleBytes> modules;      // at the peak, largest first; paths cut to `depth` parts
  std::vector<DecisionGroup> decisions;  // largest first
};

MemoryProfile profile(const Plan& plan, int depth = 3);

// The profile for people: a drawing of the step's memory over time and tables of `rows` lines.
std::string to_string(const MemoryProfile& profile, int rows = 10);

// The profile for machines, as JSON: also every buffer with its offset and life, and every
// instruction.
std::string to_json(const MemoryProfile& profile, const Plan& plan);

}  // namespace ebb::report
