// A planned step as the solver sees it: steps in their order, the values that pass between them,
// bytes and milliseconds. All in dense arrays, since strategies simulate it many times.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/plan.h"

namespace ebb {

// What one instruction makes: a value lies in a buffer of its own until nobody reads it any more.
struct ModelValue {
  std::int64_t bytes = 0;      // of the arena, when it lies there
  int producer = -1;           // step; -1: an input of the program, there from the beginning
  bool in_arena = true;        // as first made; a value made again always lies in the arena
  bool copied_out = false;     // waits for the end of the step, when it is copied into its variable
  std::vector<int> positions;  // steps that make or read it, ascending: producer first
};

// `output` (a slot) may lie where value `input` lay, when the step is the last to read it.
struct Overwrite {
  int output = 0;
  int input = 0;
};

struct ModelStep {
  std::vector<int> inputs;   // values, each once
  std::vector<int> outputs;  // values
  std::vector<Overwrite> overwrites;
  std::int64_t workspace = 0;
  double ms = 0.0;
  bool recomputable = true;
  // Last step before which it may run again: later, a variable it reads has its new value.
  int valid_until = 0;
  bool backward = false;  // part of a gradient or an update
};

struct StepModel {
  // `plan` must have been lowered without recomputation.
  StepModel(const Plan& plan, int graph_instructions);
  StepModel() = default;  // built by hand in tests; call finish() then

  // Fills in positions from steps and values.
  void finish();

  std::vector<ModelStep> steps;
  std::vector<ModelValue> values;
  // Steps from here on copy values into variables at the end; no node of the graph stands for them.
  int graph_steps = 0;

  double keep_all_ms() const;
};

}  // namespace ebb
