// Where an exported model's weights come from. They are read when the file is written, a piece at a
// time: exporting never holds a copy of the model.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "ebb/nn/module.h"
#include "ebb/quantised.h"
#include "io/hugging_face/weights.h"
#include "onnx/graph.h"

namespace ebb::onnx {

class Weights {
 public:
  virtual ~Weights() = default;
  virtual bool has(const std::string& name) const = 0;
  virtual TensorType type(const std::string& name) const = 0;  // an error if it is not there
  virtual void read(const std::string& name, const Sink& sink) const = 0;
  // How a weight is packed, if it is; `read` then gives the packed bytes.
  virtual std::optional<PackedWeight> packed(const std::string& name) const {
    return (void)name, std::nullopt;
  }
};

// The parameters and buffers of a model in memory.
class ModuleWeights : public Weights {
 public:
  explicit ModuleWeights(const nn::ModuleBase& model);
  bool has(const std::string& name) const override { return variables_.contains(name); }
  TensorType type(const std::string& name) const override { return at(name).type(); }
  void read(const std::string& name, const Sink& sink) const override;
  std::optional<PackedWeight> packed(const std::string& name) const override {
    const auto found = packed_.find(name);
    return found == packed_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const Variable& at(const std::string& name) const;
  std::map<std::string, Variable> variables_;
  std::map<std::string, PackedWeight> packed_;
};

// The tensors of a Hugging Face folder.
class FolderWeights : public Weights {
 public:
  // `model` tells which weights are packed.
  FolderWeights(const io::FolderWeights& folder, const nn::ModuleBase& model);
  bool has(const std::string& name) const override { return folder_.has(name); }
  TensorType type(const std::string& name) const override { return folder_.at(name).type; }
  void read(const std::string& name, const Sink& sink) const override {
    folder_.each_piece(name, sink);
  }
  std::optional<PackedWeight> packed(const std::string& name) const override {
    const auto found = packed_.find(name);
    return found == packed_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const io::FolderWeights& folder_;
  std::map<std::string, PackedWeight> packed_;
};

// The weights of a checkpoint: its tensors "model.PATH" and "buffer.PATH".
class CheckpointWeights : public Weights {
 public:
  explicit CheckpointWeights(const io::SafetensorsFile& file) : file_(file) {}
  bool has(const std::string& name) const override {
    return file_.entries().contains(stored(name));
  }
  TensorType type(const std::string& name) const override { return file_.at(stored(name)).type; }
  void read(const std::string& name, const Sink& sink) const override {
    file_.each_piece(stored(name), sink);
  }

 private:
  std::string stored(const std::string& name) const;
  const io::SafetensorsFile& file_;
};

// The same weights, but those stored as pairs of the pattern 2:4 are read as whole matrices.
class SpreadWeights : public Weights {
 public:
  // `model` tells which weights are stored as pairs.
  SpreadWeights(const Weights& weights, const nn::ModuleBase& model);
  bool has(const std::string& name) const override { return weights_.has(name); }
  TensorType type(const std::string& name) const override;
  void read(const std::string& name, const Sink& sink) const override;
  std::optional<PackedWeight> packed(const std::string& name) const override {
    return weights_.packed(name);
  }

 private:
  const Weights& weights_;
  std::map<std::string, nn::NamedVariable> pairs_;
};

// The same weights, with some joined as a family's files hold them: a tensor that `weights` has in
// parts is read as one.
class JoinedWeights : public Weights {
 public:
  JoinedWeights(const Weights& weights, io::Names names)
      : weights_(weights), names_(std::move(names)) {}
  bool has(const std::string& name) const override {
    return weights_.has(name) || !parts(name).empty();
  }
  TensorType type(const std::string& name) const override;
  void read(const std::string& name, const Sink& sink) const override;
  std::optional<PackedWeight> packed(const std::string& name) const override {
    return weights_.packed(name);
  }

 private:
  // The names of a joined tensor's parts, if `name` is a joined tensor.
  std::vector<std::string> parts(const std::string& name) const;
  const Weights& weights_;
  io::Names names_;
};

}  // namespace ebb::onnx
