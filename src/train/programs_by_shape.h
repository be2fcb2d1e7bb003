// Programs compiled for the shapes of batches, one for each set of shapes that came.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "ebb/ops.h"
#include "ebb/train/train_step.h"

namespace ebb {

class ProgramsByShape {
 public:
  // The program for batches like this one, compiled when there is none yet. Finding one allocates
  // nothing.
  template <class Compile>
  Program& get(const Batch& batch, const Compile& compile) {
    for (Entry& entry : entries_)
      if (std::equal(entry.types.begin(), entry.types.end(), batch.tensors.begin(),
                     batch.tensors.end(),
                     [](const TensorType& type, const Tensor& t) { return type == t.type(); }))
        return entry.program;
    return get(batch.types(), compile);
  }
  template <class Compile>
  Program& get(const std::vector<TensorType>& types, const Compile& compile) {
    for (Entry& entry : entries_)
      if (entry.types == types) return entry.program;
    entries_.push_back({types, compile(types)});
    return entries_.back().program;
  }

 private:
  struct Entry {
    std::vector<TensorType> types;
    Program program;
  };
  std::deque<Entry> entries_;  // references to programs stay good
};

// Inputs that stand for a batch while its program is traced.
inline Batch placeholders(const std::vector<TensorType>& types, Device device) {
  Batch batch;
  for (std::size_t i = 0; i < types.size(); ++i)
    batch.tensors.push_back(input(types[i], "batch." + std::to_string(i), device));
  return batch;
}

}  // namespace ebb
