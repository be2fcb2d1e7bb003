// Tensors of which every rank has a range, on their way to and from a file that rank 0 writes.
#pragma once

#include <string>
#include <vector>

#include "ebb/io/safetensors.h"
#include "ebb/train/train_step.h"
#include "train/sharded_state.h"

namespace ebb::io {

// Gathers one tensor after the other on rank 0, in order of name, as the file is written: no more
// than one is there at a time. The other ranks `give` theirs in the same order.
class ShardedTensors {
 public:
  explicit ShardedTensors(const TrainOptions& options) : options_(options) {}

  // A tensor that is gathered when its bytes are asked for. Names come in order.
  NamedTensor add(const std::string& name, const Variable& range, const TensorType& whole);
  void give();

  // On rank 0: at its end, takes what was not asked for, so that the other ranks need not wait if
  // the file could not be written.
  class TakeRest {
   public:
    explicit TakeRest(ShardedTensors& tensors) : tensors_(tensors) {}
    ~TakeRest();
    TakeRest(const TakeRest&) = delete;
    TakeRest& operator=(const TakeRest&) = delete;

   private:
    ShardedTensors& tensors_;
  };

 private:
  struct Entry {
    std::string name;
    Variable range;
    TensorType whole;
  };
  std::vector<std::byte> gather(std::size_t i);

  const TrainOptions& options_;
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
};

// Copies a rank's range of an entry into a variable.
void load_own_range(const SafetensorsFile& file, const std::string& name, Variable range, int rank);

}  // namespace ebb::io
