// One program for each set of batch shapes seen so far. All run in one arena.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/arena.h"
#include "ebb/ops.h"
#include "ebb/train/train_step.h"

namespace ebb {

class ProgramsByShape {
 public:
  // Programs run in `options.arena`, or in a new arena on `device`.
  ProgramsByShape(Device device, CompileOptions options) : options_(std::move(options)) {
    if (!options_.arena) options_.arena = std::make_shared<Arena>(device, options_.machine);
  }

  // The program for batches like this one; `trace` makes its graph when there is none yet. Finding
  // one allocates nothing.
  template <class Trace>
  Program& program(const Batch& batch, const Trace& trace) {
    Entry* entry = entry_for(batch);
    return compiled(entry ? *entry : planned(batch.types(), trace));
  }
  template <class Trace>
  Program& program(const std::vector<TensorType>& types, const Trace& trace) {
    return compiled(planned(types, trace));
  }

  // The same if it has been compiled, or null.
  Program* find(const Batch& batch) {
    Entry* entry = entry_for(batch);
    return entry && entry->program ? &*entry->program : nullptr;
  }

  // The plan for such batches. Runs nothing and allocates no tensor. The reference stays valid.
  template <class Trace>
  const Plan& plan(const std::vector<TensorType>& types, const Trace& trace) {
    return *planned(types, trace).plan;
  }

  template <class Visit>
  void each_compiled(const Visit& visit) const {
    for (const Entry& entry : entries_)
      if (entry.program) visit(*entry.program);
  }

  const CompileOptions& options() const { return options_; }

 private:
  struct Entry {
    std::vector<TensorType> types;
    std::optional<Graph> graph;  // until it is compiled
    std::unique_ptr<const Plan> plan;
    std::optional<Program> program;
  };

  Entry* entry_for(const Batch& batch) {
    for (Entry& entry : entries_)
      if (std::equal(entry.types.begin(), entry.types.end(), batch.tensors.begin(),
                     batch.tensors.end(),
                     [](const TensorType& type, const Tensor& t) { return type == t.type(); }))
        return &entry;
    return nullptr;
  }

  template <class Trace>
  Entry& planned(const std::vector<TensorType>& types, const Trace& trace) {
    for (Entry& entry : entries_)
      if (entry.types == types) return entry;
    Graph graph = trace(types);
    auto plan = std::make_unique<const Plan>(plan_program(graph, options_));
    // Programs share their variables, so the first plan decides where these are.
    if (options_.plan.offload.any() && entries_.empty())
      options_.plan.offload.homes = homes_of(*plan);
    entries_.push_back({types, std::move(graph), std::move(plan), {}});
    return entries_.back();
  }

  Program& compiled(Entry& entry) {
    if (!entry.program) {
      entry.program.emplace(*entry.graph, *entry.plan, options_);
      entry.graph.reset();
    }
    return *entry.program;
  }

  CompileOptions options_;
  std::deque<Entry> entries_;  // a deque keeps references to programs valid
};

// Inputs that stand for a batch while its program is traced.
inline Batch placeholders(const std::vector<TensorType>& types, Device device) {
  Batch batch;
  for (std::size_t i = 0; i < types.size(); ++i)
    batch.tensors.push_back(input(types[i], "batch." + std::to_string(i), device));
  return batch;
}

}  // namespace ebb
