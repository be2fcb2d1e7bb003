#include "ebb/onnx/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ebb/error.h"
#include "ebb/io/hugging_face.h"
#include "io/checkpoint_file.h"
#include "io/hugging_face/load_pairs.h"
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
  if (options.bits == LowBits::nf4)
    throw ValueError("[onnx] weights can be int8 or int4; ONNX cannot express the levels of nf4");
}

void check_quantised(const ExportOptions& options) {
  if (options.opset < first_quantised_opset)
    throw ValueError(fmt::format(
        "[onnx] weights in few bits need opset {} or newer, whose DequantizeLinear has blocks, but "
        "the opset is {}",
        first_quantised_opset, options.opset));
}

// Weights that are packed keep their codes.
void check_packed(const nn::ModuleBase& model, const ExportOptions& options) {
  if (!options.bits) return;
  for (const nn::NamedVariable& p : model.parameters())
    if (p.packed && p.packed->encoding.kind != *options.bits)
      throw ValueError(fmt::format("[onnx] \"{}\" is stored in {} already and cannot become {}",
                                   p.path, ebb::name(p.packed->encoding.kind),
                                   ebb::name(*options.bits)));
}

// The dtype that all parameters have.
DType common_dtype(const nn::ModuleBase& model, const io::Names& names, const Weights& weights) {
  std::vector<std::string> paths;  // of tensors in files
  for (const nn::NamedVariable& p : model.parameters()) {
    if (p.packed) continue;
    const auto part = names.part(p.path);
    paths.push_back(part ? part->first : p.path);
  }
  const std::string& first = paths.front();
  const DType dtype = weights.type(first).dtype;
  if (dtype != f32 && !is_half(dtype))
    throw DTypeError(
        fmt::format("[onnx] weights must be float32, float16 or bfloat16, but \"{}\" is {}",
                    names.in_files(first), name(dtype)));
  for (const std::string& path : paths)
    if (const DType other = weights.type(path).dtype; other != dtype)
      throw DTypeError(
          fmt::format("[onnx] all weights must have one dtype, but \"{}\" is {} and \"{}\" is {}",
                      names.in_files(first), name(dtype), names.in_files(path), name(other)));
  return dtype;
}

// Every parameter and buffer must have a part in the graph, because a description that omits one
// would compute something else.
void check_complete(const nn::ModuleBase& model, const io::Names& names, const Graph& graph) {
  std::set<std::string> used;
  for (const Initializer& i : graph.initializers)
    if (i.kind == Kind::weight) used.insert(i.name);
  for (const nn::NamedVariable& p : model.parameters())
    if (p.pairs) used.insert(names.in_files(io::positions_path(p.path)));  // read with the weight
  std::vector<std::string> forgotten;
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const nn::NamedVariable& v : list) {
      const auto part = names.part(v.path);  // a part of a tensor that files hold as one
      if (!used.contains(names.in_files(v.path)) &&
          !(part && used.contains(names.in_files(part->first))))
        forgotten.push_back(v.path);
    }
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

void refuse_cache(const std::string& family, Cache cache) {
  if (cache == Cache::yes)
    throw ValueError(fmt::format(
        "[onnx] a cache is for models that predict the next token, and {} does not", family));
}

// Writes the graph of the model's family.
template <class Model>
ExportSummary write(const Model& model, const Weights& own_weights, const fs::path& file,
                    const ExportOptions& options) {
  using Described = Family<Model>;
  const io::Names names = Described::names(model);
  const SpreadWeights whole(own_weights, model);
  const JoinedWeights weights(whole, names);
  ExportSummary summary;
  summary.family = Described::name(model), summary.opset = options.opset;
  summary.ir_version = ir_version(options.opset);
  if (!Described::predicts_next) refuse_cache(summary.family, options.cache);
  check_packed(model, options);
  summary.weights = common_dtype(model, names, weights);
  summary.compute = options.compute == Compute::in_float32 ? f32 : summary.weights;
  Builder builder(weights, summary.compute, names, options.bits);
  Described::describe(builder, model, options.cache);
  const Graph graph = builder.finish(summary.family);
  check_complete(model, names, graph);
  for (const Initializer& i : graph.initializers)
    if (i.small) summary.quantised += i.type.shape.elements();
  if (summary.quantised > 0) check_quantised(options);
  if (options.bits && summary.quantised == 0)
    throw ValueError(fmt::format("[onnx] {} has no linear layers to quantise", summary.family));
  const Written written = write_model(graph, file, options.opset, options.external_data);

  summary.inputs = exported(graph.inputs), summary.outputs = exported(graph.outputs);
  for (const Node& node : graph.nodes) ++summary.operators[node.op];
  for (const Initializer& i : graph.initializers)
    if (i.kind == Kind::weight) {
      summary.parameters += i.type.shape.elements();
      summary.weight_bytes += i.bytes();
    }
  summary.model_bytes = written.model, summary.external_bytes = written.external;
  summary.external_file = written.external_file;
  return summary;
}

ExportSummary export_any(const nn::ModuleBase& model, const Weights& weights, const fs::path& file,
                         const ExportOptions& options) {
  check(options);
  std::optional<ExportSummary> done;
  const auto attempt = [&]<class Model>(const Model*) {
    const auto* known = dynamic_cast<const Model*>(&model);
    if (known) done = write(*known, weights, file, options);
  };
  const auto attempt_all = [&]<class... Model>() {
    (attempt(static_cast<const Model*>(nullptr)), ...);
  };
  attempt_all.template
  operator()<models::Gpt2, models::Llama, models::BertClassifier, models::BertMaskedLm,
             models::LanguageModel, models::ResNet, models::Mlp>();
  if (!done)
    throw ValueError(
        "[onnx] only Gpt2, Llama, BertClassifier, BertMaskedLm, LanguageModel, ResNet and Mlp can "
        "be exported, and the model is none of them");
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
  return export_any(*folder.model, FolderWeights(folder.weights, *folder.model), file, options);
}

}  // namespace

ExportSummary export_folder(const fs::path& folder, const fs::path& file,
                            const ExportOptions& options) {
  check(options);
  const std::string type = io::model_type(folder);
  // The model gives names and shapes; it gets no bytes, so its dtype does not matter.
  if (type == "gpt2")
    return export_open(io::open_gpt2(folder, device::cpu, f32), folder, file, options);
  if (io::decoder_family(type))
    return export_open(io::open_llama(folder, device::cpu, f32), folder, file, options);
  // A folder without a classifier may have the head for masked words.
  const auto classifier = io::open_bert(folder, device::cpu, f32);
  if (classifier.model->origin().initialised.empty())
    return export_open(classifier, folder, file, options);
  const auto masked = io::open_bert_masked_lm(folder, device::cpu, f32);
  if (masked.model->origin().initialised.empty()) return export_open(masked, folder, file, options);
  return export_open(classifier, folder, file, options);
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
