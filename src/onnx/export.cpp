#include "ebb/onnx/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "io/checkpoint_file.h"
#include "io/hugging_face/open.h"
#include "onnx/family.h"
#include "onnx/model_file.h"

namespace ebb::onnx {
namespace {

namespace fs = std::filesystem;

void check(const ExportOptions& options) {
  if (options.opset < first_opset || options.opset > last_opset)
    throw ValueError(fmt::format("[onnx] the opset must be between {} and {}, but is {}",
                                 first_opset, last_opset, options.opset));
}

// The dtype that all parameters have.
DType common_dtype(const nn::ModuleBase& model, const Weights& weights) {
  const std::vector<nn::NamedVariable> parameters = model.parameters();
  const std::string& first = parameters.front().path;
  const DType dtype = weights.type(first).dtype;
  if (dtype != f32 && !is_half(dtype))
    throw DTypeError(
        fmt::format("[onnx] weights must be float32, float16 or bfloat16, but \"{}\" is {}", first,
                    name(dtype)));
  for (const nn::NamedVariable& p : parameters)
    if (const DType other = weights.type(p.path).dtype; other != dtype)
      throw DTypeError(
          fmt::format("[onnx] all weights must have one dtype, but \"{}\" is {} and \"{}\" is {}",
                      first, name(dtype), p.path, name(other)));
  return dtype;
}

// Every parameter and buffer must have a part in the graph: a description that forgets one would
// compute something else.
void check_complete(const nn::ModuleBase& model, const Graph& graph) {
  std::set<std::string> used;
  for (const Initializer& i : graph.initializers)
    if (i.kind == Kind::weight) used.insert(i.name);
  std::vector<std::string> forgotten;
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const nn::NamedVariable& v : list)
      if (!used.contains(v.path)) forgotten.push_back(v.path);
  if (!forgotten.empty())
    throw ValueError(fmt::format("[onnx] the graph has no use for {}", fmt::join(forgotten, ", ")));
}

std::vector<ExportedPort> exported(const std::vector<Port>& ports) {
  std::vector<ExportedPort> result;
  for (const Port& port : ports) {
    ExportedPort& added = result.emplace_back(ExportedPort{port.name, port.dtype, {}});
    for (const Axis& axis : port.axes)
      added.axes.push_back(std::holds_alternative<std::string>(axis)
                               ? std::get<std::string>(axis)
                               : std::to_string(std::get<std::int64_t>(axis)));
  }
  return result;
}

// Writes the graph that `describe` builds.
template <class Describe>
ExportSummary write(const std::string& family, const nn::ModuleBase& model, const Weights& weights,
                    const fs::path& file, const ExportOptions& options, const Describe& describe) {
  ExportSummary summary;
  summary.family = family, summary.opset = options.opset;
  summary.ir_version = ir_version(options.opset);
  summary.weights = common_dtype(model, weights);
  summary.compute = options.compute == Compute::in_float32 ? f32 : summary.weights;
  Builder builder(weights, summary.compute);
  describe(builder);
  const Graph graph = builder.finish(family);
  check_complete(model, graph);
  const Written written = write_model(graph, file, options.opset, options.external_data);

  summary.inputs = exported(graph.inputs), summary.outputs = exported(graph.outputs);
  for (const Node& node : graph.nodes) ++summary.operators[node.op];
  for (const Initializer& i : graph.initializers)
    if (i.kind == Kind::weight) {
      summary.parameters += i.type.shape.elements();
      summary.weight_bytes += i.type.bytes();
    }
  summary.model_bytes = written.model, summary.external_bytes = written.external;
  summary.external_file = written.external_file;
  return summary;
}

void refuse_cache(const std::string& family, Cache cache) {
  if (cache == Cache::yes)
    throw ValueError(fmt::format(
        "[onnx] a cache is for models that predict the next token, and {} does not", family));
}

// The description for this class of models, if the model is of it.
template <class Model>
std::optional<ExportSummary> try_family(const char* family, const nn::ModuleBase& model,
                                        const Weights& weights, const fs::path& file,
                                        const ExportOptions& options) {
  const auto* known = dynamic_cast<const Model*>(&model);
  if (!known) return {};
  const auto with_cache = [&](Builder& b) {
    if constexpr (std::is_base_of_v<models::CausalLm, Model>) {
      describe(b, known->config(), options.cache);
    } else {
      describe(b, known->config());
    }
  };
  if constexpr (!std::is_base_of_v<models::CausalLm, Model>) refuse_cache(family, options.cache);
  return write(family, model, weights, file, options, with_cache);
}

ExportSummary export_any(const nn::ModuleBase& model, const Weights& weights, const fs::path& file,
                         const ExportOptions& options) {
  check(options);
  std::optional<ExportSummary> done;
  const auto attempt = [&]<class Model>(const char* family) {
    if (!done) done = try_family<Model>(family, model, weights, file, options);
  };
  attempt.template operator()<models::Gpt2>("gpt2");
  attempt.template operator()<models::Llama>("llama");
  attempt.template operator()<models::BertClassifier>("bert");
  attempt.template operator()<models::LanguageModel>("lm");
  attempt.template operator()<models::ResNet>("resnet");
  attempt.template operator()<models::Mlp>("mlp");
  if (!done)
    throw ValueError(
        "[onnx] only Gpt2, Llama, BertClassifier, LanguageModel, ResNet and Mlp can be exported, "
        "and the model is none of them");
  return *done;
}

template <class Model>
ExportSummary export_open(const io::OpenFolder<Model>& folder, const fs::path& path,
                          const fs::path& file, const ExportOptions& options) {
  if (const auto& missing = folder.model->origin().initialised; !missing.empty())
    throw FileError(fmt::format(
        "{}: it has no {}, which would start from random numbers; train the model and export what "
        "is saved",
        path.string(), fmt::join(missing, ", ")));
  return export_any(*folder.model, FolderWeights(folder.weights), file, options);
}

}  // namespace

ExportSummary export_folder(const fs::path& folder, const fs::path& file,
                            const ExportOptions& options) {
  check(options);
  const std::string type = io::model_type(folder);
  // The model gives names and shapes; it gets no bytes, so its dtype does not matter.
  if (type == "gpt2")
    return export_open(io::open_gpt2(folder, device::cpu, f32), folder, file, options);
  if (type == "llama")  // its relatives are refused by name
    return export_open(io::open_llama(folder, device::cpu, f32), folder, file, options);
  if (type != "bert")
    throw FileError(
        fmt::format("{}: ebb export has gpt2, llama and bert, but not {}", folder.string(), type));
  return export_open(io::open_bert(folder, device::cpu, f32), folder, file, options);
}

ExportSummary export_model(const nn::ModuleBase& model, const fs::path& file,
                           const ExportOptions& options) {
  return export_any(model, ModuleWeights(model), file, options);
}

ExportSummary export_checkpoint(const nn::ModuleBase& model, const fs::path& checkpoint,
                                const fs::path& file, const ExportOptions& options) {
  const io::CheckpointFile saved(checkpoint, io::step_format);
  const CheckpointWeights weights(saved.file());
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const nn::NamedVariable& v : list)
      if (const TensorType found = weights.type(v.path); found.shape != v.variable.shape())
        saved.fail(fmt::format("\"{}\" has shape {}, but the model's is {}", v.path,
                               to_string(found.shape), to_string(v.variable.shape())));
  saved.file().check_tensors();
  return export_any(model, weights, file, options);
}

}  // namespace ebb::onnx
