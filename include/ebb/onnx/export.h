// Models as ONNX files, for other engines: named axes of free size, weights with their names in
// safetensors and in their own dtype. docs/onnx.md lists inputs, outputs and operators.
//
// Weights are read while the file is written, so that exporting a folder or a checkpoint takes
// little memory however large the model is.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/bytes.h"
#include "ebb/dtype.h"
#include "ebb/nn/module.h"
#include "ebb/quantised.h"

namespace ebb::onnx {

// The oldest and newest versions of the operators that are written. They differ in the number that
// the file states; the operators in use mean the same in all of them.
inline constexpr int first_opset = 18, last_opset = 26;
// The first whose DequantizeLinear knows blocks and int4.
inline constexpr int first_quantised_opset = 21;

// Keys and values of earlier tokens as inputs and outputs, for generation.
enum class Cache : bool { no, yes };
// Weights in a file of their own, FILE.data: when one file would reach 2 GiB, always, or never.
enum class ExternalData : std::uint8_t { when_needed, yes, no };
// The dtype of products, inputs and outputs. Weights are stored in theirs either way.
enum class Compute : bool { as_weights, in_float32 };

struct ExportOptions {
  int opset = first_opset;
  Cache cache = Cache::no;
  ExternalData external_data = ExternalData::when_needed;
  Compute compute = Compute::as_weights;
  // Stores weights of linear layers as int8 or int4 with a scale for each block, decoded by
  // DequantizeLinear: the codes and scales of ebb's int8 and int4 (ebb/quantised.h). Needs opset
  // 21. Embeddings and output layers of language models are not quantised.
  std::optional<LowBits> bits = {};
};

// An input or output: an axis is a number, or a name for a size that every run chooses.
struct ExportedPort {
  std::string name;
  DType dtype = f32;
  std::vector<std::string> axes;
};

struct ExportSummary {
  std::string family;  // config.json's model_type, such as "gpt2"; or "resnet", "mlp", "lm"
  int opset = first_opset;
  std::int64_t ir_version = 0;
  DType weights = f32, compute = f32;
  std::int64_t quantised = 0;  // weights in few bits
  std::vector<ExportedPort> inputs, outputs;
  std::map<std::string, std::int64_t> operators;  // nodes of each type
  std::int64_t parameters = 0;                    // numbers in all weights
  Bytes weight_bytes, model_bytes, external_bytes;
  std::optional<std::filesystem::path> external_file;
};

// A Hugging Face folder. That of an encoder must have a classifier or the head for masked words;
// with both, the classifier is exported.
ExportSummary export_folder(const std::filesystem::path& folder, const std::filesystem::path& file,
                            const ExportOptions& options = {});

// A model in memory: Gpt2, Llama, BertClassifier, BertMaskedLm, LanguageModel, ResNet or Mlp; an
// error for others. Weights that are packed (nn::adapt) keep their codes and scales.
ExportSummary export_model(const nn::ModuleBase& model, const std::filesystem::path& file,
                           const ExportOptions& options = {});

// The same with the weights of a checkpoint of that model, which are not loaded.
ExportSummary export_checkpoint(const nn::ModuleBase& model,
                                const std::filesystem::path& checkpoint,
                                const std::filesystem::path& file,
                                const ExportOptions& options = {});

}  // namespace ebb::onnx
