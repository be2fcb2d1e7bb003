// The model of a training step that recomputation strategies work on: its instructions ("steps") in
// order, the values that pass between them, bytes and milliseconds, all in dense arrays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/plan.h"

namespace ebb::planning {

// An output of one instruction, or an input. It has a buffer of its own until its last reader.
struct ModelValue {
  std::int64_t bytes = 0;      // of its buffer
  int producer = -1;           // step; -1: an input of the program, live from the beginning
  bool in_arena = true;        // of its first copy; recomputed copies are always in the arena
  bool copied_out = false;     // copied into its variable when the training step ends
  std::vector<int> positions;  // the producer, then the steps that read it, ascending
};

// Output number `output` of a step may overwrite the value `input` if the step is its last reader.
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
  // The last step before which it may run again: after that, a variable that it reads has changed.
  int valid_until = 0;
  bool backward = false;  // part of a gradient or an update
};

struct StepModel {
  // `plan` must have been lowered without recomputation.
  StepModel(const Plan& plan, int graph_instructions);
  StepModel() = default;  // for tests, which fill in the arrays and then call finish()

  // Sets the positions of all values.
  void finish();

  std::vector<ModelStep> steps;
  std::vector<ModelValue> values;
  // Steps from this one on copy new values into variables; they have no node in the graph.
  int graph_steps = 0;

  double keep_all_ms() const;
};

}  // namespace ebb::planning
