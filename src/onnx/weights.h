// Where an exported model's weights come from. They are read when the file is written, a piece at a
// time: exporting never holds a copy of the model.
#pragma once

#include <map>
#include <string>

#include "ebb/nn/module.h"
#include "io/hugging_face/weights.h"
#include "onnx/graph.h"

namespace ebb::onnx {

class Weights {
 public:
  virtual ~Weights() = default;
  virtual TensorType type(const std::string& name) const = 0;  // an error if it is not there
  virtual void read(const std::string& name, const Sink& sink) const = 0;
};

// The parameters and buffers of a model in memory.
class ModuleWeights : public Weights {
 public:
  explicit ModuleWeights(const nn::ModuleBase& model);
  TensorType type(const std::string& name) const override { return at(name).type(); }
  void read(const std::string& name, const Sink& sink) const override;

 private:
  const Variable& at(const std::string& name) const;
  std::map<std::string, Variable> variables_;
};

// The tensors of a Hugging Face folder.
class FolderWeights : public Weights {
 public:
  explicit FolderWeights(const io::FolderWeights& folder) : folder_(folder) {}
  TensorType type(const std::string& name) const override { return folder_.at(name).type; }
  void read(const std::string& name, const Sink& sink) const override {
    folder_.each_piece(name, sink);
  }

 private:
  const io::FolderWeights& folder_;
};

// The weights of a checkpoint: its tensors "model.PATH" and "buffer.PATH".
class CheckpointWeights : public Weights {
 public:
  explicit CheckpointWeights(const io::SafetensorsFile& file) : file_(file) {}
  TensorType type(const std::string& name) const override { return file_.at(stored(name)).type; }
  void read(const std::string& name, const Sink& sink) const override {
    file_.each_piece(stored(name), sink);
  }

 private:
  std::string stored(const std::string& name) const;
  const io::SafetensorsFile& file_;
};

}  // namespace ebb::onnx
