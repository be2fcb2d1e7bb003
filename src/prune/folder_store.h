// Weights that are read from one Hugging Face folder and written to another, a block at a time.
#pragma once

#include "ebb/prune/walk.h"
#include "io/hugging_face/folder_writer.h"
#include "io/hugging_face/weights.h"

namespace ebb::prune {

class FolderStore : public WeightStore {
 public:
  // `dtype` is that of the model that the weights are read into. Weights that the writer's model
  // has packed are packed by plain rounding, or as pairs, unless they have already been written.
  FolderStore(const io::FolderWeights& weights, DType dtype, io::FolderWriter& writer)
      : weights_(weights), dtype_(dtype), writer_(writer) {}

  void fetch(const nn::NamedVariable& variable) override;
  void keep(const nn::NamedVariable& variable) override;
  void release(const nn::NamedVariable& variable) override;
  Bytes extra_bytes(const nn::NamedVariable& variable) const override;

 private:
  const io::FolderWeights& weights_;
  const DType dtype_;
  io::FolderWriter& writer_;
};

}  // namespace ebb::prune
