// Graphs of every family, and the models that are refused. tests/onnx compares their results.
#include "ebb/onnx/export.h"

#include <gtest/gtest.h>

#include <set>

#include "ebb/ebb.h"
#include "ebb/nn/adapt.h"
#include "ebb/storage.h"
#include "onnx/family.h"
#include "onnx/layers.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"
#include "support/tensorrt_operators.h"
#include "support/text_file.h"

namespace ebb::onnx {
namespace {

namespace fs = std::filesystem;
using test::contents, test::expect_error;

models::Gpt2Config small_gpt2() {
  models::Gpt2Config c;
  c.vocabulary = 11, c.context = 6, c.layers = 2, c.heads = 3, c.width = 12;
  return c;
}
models::LlamaConfig small_llama() {
  models::LlamaConfig c;
  c.vocabulary = 11, c.width = 24, c.hidden = 10, c.layers = 2, c.heads = 6, c.key_value_heads = 2,
  c.context = 6;
  return c;
}
models::BertConfig small_bert() {
  models::BertConfig c;
  c.vocabulary = 11, c.width = 12, c.layers = 1, c.heads = 3, c.hidden = 10, c.context = 6;
  return c;
}

models::LlamaConfig relative(models::DecoderFamily family) {
  models::LlamaConfig c = small_llama();
  c.family = family;
  if (family == models::DecoderFamily::mistral) c.window = 3;
  if (family == models::DecoderFamily::qwen2) c.attention_bias = true, c.output_bias = false;
  if (family == models::DecoderFamily::qwen3) c.head_norms = true;
  if (family == models::DecoderFamily::gpt_neox) {
    c.heads = c.key_value_heads = 3, c.rotary_size = 4;
    c.attention_bias = c.mlp_bias = c.layer_norms = c.parallel = true, c.gated = false;
  }
  return c;
}
models::BertConfig encoder(models::EncoderFamily family) {
  models::BertConfig c = small_bert();
  c.family = family, c.padding = 1;
  if (family == models::EncoderFamily::distilbert) c.types = 0;
  return c;
}

template <class Model, class Config>
Model made(const Config& config, DType dtype = f32) {
  return make<Model>(device::cpu, dtype, config);
}

// Calls use(model) for one of each family.
template <class Use>
void each_family(DType dtype, const Use& use) {
  using models::ResNetConfig;
  use(made<models::Gpt2>(small_gpt2(), dtype));
  for (const auto family :
       {models::DecoderFamily::llama, models::DecoderFamily::mistral, models::DecoderFamily::qwen2,
        models::DecoderFamily::qwen3, models::DecoderFamily::gpt_neox})
    use(made<models::Llama>(relative(family), dtype));
  for (const auto family : {models::EncoderFamily::bert, models::EncoderFamily::roberta,
                            models::EncoderFamily::distilbert}) {
    use(made<models::BertClassifier>(encoder(family), dtype));
    use(made<models::BertMaskedLm>(encoder(family), dtype));
  }
  use(made<models::LanguageModel>(models::LanguageModelConfig{}, dtype));
  use(made<models::ResNet>(ResNetConfig{ResNetConfig::Block::bottleneck, {1, 1}, {4, 6}, 3, 5},
                           dtype));
  use(made<models::Mlp>(models::MlpConfig{.inputs = 7, .hidden = 5}, dtype));
}

template <class Model>
Graph graph_of(const Model& model, DType compute, Cache cache, std::optional<LowBits> bits = {}) {
  const ModuleWeights own(model);
  const JoinedWeights weights(own, Family<Model>::names(model));
  Builder builder(weights, compute, Family<Model>::names(model), bits);
  Family<Model>::describe(builder, model, cache);
  return builder.finish("test");
}

void expect_tensorrt_takes(const Graph& graph) {
  std::set<std::string> constants;
  for (const Initializer& i : graph.initializers) constants.insert(i.name);
  for (const Node& node : graph.nodes) {
    const auto known = test::tensorrt_operators.find(node.op);
    ASSERT_NE(known, test::tensorrt_operators.end()) << node.name;
    const bool taken = node.dtype == b8          ? known->second.boolean
                       : is_floating(node.dtype) ? known->second.real
                                                 : known->second.whole;
    EXPECT_TRUE(taken) << node.name << " of " << name(node.dtype);
    const bool needs_axes = node.op == "CumSum" || node.op.starts_with("Reduce") ||
                            node.op == "Squeeze" || node.op == "Unsqueeze";
    if (needs_axes) {
      EXPECT_TRUE(constants.contains(node.inputs.at(1))) << node.name;
    }
    if (node.op == "DequantizeLinear") {  // codes and scales; a zero point must be zero
      EXPECT_EQ(node.inputs.size(), 2u) << node.name;
    }
  }
}

TEST(OnnxExport, TensorRtTakesEveryOperator) {
  for (const DType dtype : {f32, f16, bf16})
    each_family(dtype, [&](const auto& model) {
      for (const Cache cache : {Cache::no, Cache::yes}) {
        expect_tensorrt_takes(graph_of(model, dtype, cache));
        expect_tensorrt_takes(graph_of(model, f32, cache));
        for (const LowBits bits : {LowBits::int8, LowBits::int4})
          expect_tensorrt_takes(graph_of(model, dtype, cache, bits));
      }
    });
  const auto model = made<models::Mlp>(models::MlpConfig{});
  const ModuleWeights weights(model);
  Builder builder(weights, bf16);
  const Value x = builder.input("x", bf16, {std::int64_t{3}});
  for (int i = 0; i <= static_cast<int>(nn::Activation::sqrt_softplus); ++i)
    activate(builder, static_cast<nn::Activation>(i), x);
  expect_tensorrt_takes(builder.finish("activations"));
}

// Every name is made once, before it is read.
TEST(OnnxExport, GraphsAreInOrder) {
  each_family(f16, [](const auto& model) {
    const Graph graph = graph_of(model, f16, Cache::yes);
    std::set<std::string> known, weights;
    for (const Port& input : graph.inputs) EXPECT_TRUE(known.insert(input.name).second);
    for (const Initializer& i : graph.initializers) {
      EXPECT_TRUE(known.insert(i.name).second) << i.name;
      if (i.kind == Kind::weight) weights.insert(i.name);
    }
    for (const Node& node : graph.nodes) {
      for (const std::string& input : node.inputs) EXPECT_TRUE(known.contains(input)) << input;
      for (const std::string& output : node.outputs)
        EXPECT_TRUE(known.insert(output).second) << output;
    }
    for (const Port& output : graph.outputs) EXPECT_TRUE(known.contains(output.name));
    std::set<std::string> expected;
    if constexpr (requires { model.origin(); }) {  // names as in the files of its family
      const auto names = Family<std::remove_cvref_t<decltype(model)>>::names(model);
      for (const io::NamedTensor& t : io::file_tensors(model, names)) expected.insert(t.name);
    } else {
      for (const auto& list : {model.parameters(), model.buffers()})
        for (const nn::NamedVariable& v : list) expected.insert(v.path);
    }
    EXPECT_EQ(weights, expected);
  });
}

std::vector<std::string> texts(const std::vector<ExportedPort>& ports) {
  std::vector<std::string> result;
  for (const ExportedPort& port : ports) {
    std::string text = port.name + ":" + std::string(name(port.dtype));
    for (const std::string& axis : port.axes) text += " " + axis;
    result.push_back(text);
  }
  return result;
}

TEST(OnnxExport, NamesInputsAndOutputs) {
  const test::TemporaryFolder folder;
  models::LlamaConfig config = small_llama();
  config.layers = 1;
  const auto llama = made<models::Llama>(config, f16);
  const ExportSummary s =
      export_model(llama, folder / "m.onnx", {.opset = 20, .cache = Cache::yes});
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(s.inputs),
            (Texts{"input_ids:int64 batch_size sequence_length",
                   "attention_mask:int64 batch_size total_sequence_length",
                   "past_key_values.0.key:float16 batch_size 2 past_sequence_length 4",
                   "past_key_values.0.value:float16 batch_size 2 past_sequence_length 4"}));
  EXPECT_EQ(texts(s.outputs),
            (Texts{"logits:float16 batch_size sequence_length 11",
                   "present.0.key:float16 batch_size 2 total_sequence_length 4",
                   "present.0.value:float16 batch_size 2 total_sequence_length 4"}));
  EXPECT_EQ(s.family, "llama");
  EXPECT_EQ(s.opset, 20);
  EXPECT_EQ(s.parameters, llama.parameter_count());
  EXPECT_EQ(s.weight_bytes.count, 2 * llama.parameter_count());
  EXPECT_EQ(s.model_bytes.count, static_cast<std::int64_t>(fs::file_size(folder / "m.onnx")));
  EXPECT_EQ(s.operators.at("Softmax"), 1);

  const ExportSummary wide =
      export_model(llama, folder / "w.onnx", {.compute = Compute::in_float32});
  EXPECT_EQ(wide.weights, f16);
  EXPECT_EQ(wide.compute, f32);
  EXPECT_EQ(wide.weight_bytes, s.weight_bytes);
  EXPECT_EQ(wide.outputs.front().dtype, f32);
}

// A packed model keeps its codes; a plain one is packed as nn::adapt packs it.
TEST(OnnxExport, QuantisedWeightsAreThoseOfThePackedModel) {
  const test::TemporaryFolder folder;
  for (const LowBits bits : {LowBits::int8, LowBits::int4}) {
    const auto plain = made<models::Llama>(small_llama());
    io::save(plain, folder / "hf");
    const ExportSummary s = export_model(plain, folder / "plain.onnx", {.opset = 21, .bits = bits});
    EXPECT_EQ(s.quantised, 2 * (2 * 24 * 24 + 2 * 24 * 8 + 3 * 24 * 10));
    const auto packed = io::open_folder(folder / "hf", device::cpu, f32);
    nn::adapt(*packed.module, {.base = bits});
    packed.load();
    export_model(*packed.module, folder / "packed.onnx", {.opset = 21});
    EXPECT_EQ(contents(folder / "packed.onnx"), contents(folder / "plain.onnx"));
    export_folder(folder / "hf", folder / "folder.onnx", {.opset = 21, .bits = bits});
    EXPECT_EQ(contents(folder / "folder.onnx"), contents(folder / "plain.onnx"));
    expect_error([&] { export_model(plain, folder / "no", {.bits = bits}); }, {"opset 21", "18"});
  }
  const auto model = made<models::Llama>(small_llama());
  expect_error([&] { export_model(model, folder / "no", {.opset = 21, .bits = LowBits::nf4}); },
               {"nf4", "int8 or int4"});
  const auto packed = io::open_folder(folder / "hf", device::cpu, f32);
  nn::adapt(*packed.module, {.base = LowBits::nf4});
  packed.load();
  expect_error([&] { export_model(*packed.module, folder / "no", {.opset = 21}); }, {"nf4"});
  EXPECT_FALSE(fs::exists(folder / "no"));
}

TEST(OnnxExport, AFolderGivesTheFileOfItsModel) {
  const test::TemporaryFolder folder;
  const auto expect_same = [&](const auto& model) {
    export_model(model, folder / "model.onnx");
    io::save(model, folder / "hf");
    const std::int64_t allocations = Storage::allocations();
    export_folder(folder / "hf", folder / "folder.onnx");
    // The frequencies of rotary positions are computed; no weight is loaded.
    EXPECT_LE(Storage::allocations() - allocations, 4) << "the weights were loaded";
    EXPECT_EQ(contents(folder / "folder.onnx"), contents(folder / "model.onnx"));
  };
  expect_same(made<models::Gpt2>(small_gpt2(), bf16));
  each_family(f16, [&](const auto& model) {
    if constexpr (requires { io::save(model, folder / "hf"); }) expect_same(model);
  });
}

struct Unknown : nn::Module<Unknown> {
  nn::Linear layer{at("layer"), 2, 3};
  Tensor forward(const Tensor& x) { return layer(x); }
};

TEST(OnnxExport, Refusals) {
  const test::TemporaryFolder folder;
  const fs::path file = folder / "m.onnx";
  const auto mlp = made<models::Mlp>(models::MlpConfig{});
  for (const int opset : {0, 17, 27})
    expect_error([&] { export_model(mlp, file, {.opset = opset}); },
                 {"opset", "between 18 and 26", std::to_string(opset)});
  expect_error([&] { export_model(mlp, file, {.cache = Cache::yes}); }, {"cache", "mlp"});
  expect_error(
      [&] {
        export_model(made<models::BertClassifier>(small_bert()), file, {.cache = Cache::yes});
      },
      {"cache", "bert"});
  expect_error([&] { export_model(made<models::Mlp>(models::MlpConfig{}, f64), file); },
               {"float32, float16 or bfloat16", "\"layers.0.weight\" is float64"});
  expect_error([&] { export_model(make<Unknown>(device::cpu, f32), file); },
               {"only Gpt2", "none of them"});

  // A folder whose tensors have different dtypes, and one without a classifier.
  const auto gpt2 = made<models::Gpt2>(small_gpt2());
  io::save(gpt2, folder / "mixed");
  std::vector<io::NamedTensor> tensors;
  for (const nn::NamedVariable& p : gpt2.parameters()) {
    const bool other = p.path == "transformer.ln_f.bias";
    const Variable kept(other ? cast(p.variable, bf16) : Tensor(p.variable));
    kept.materialise();
    tensors.push_back({p.path, kept});
  }
  io::write_safetensors(folder / "mixed" / "model.safetensors", std::move(tensors));
  expect_error([&] { export_folder(folder / "mixed", file); },
               {"one dtype", "\"transformer.ln_f.bias\" is bfloat16"});
  const auto bert = made<models::BertClassifier>(small_bert());
  io::save(bert, folder / "headless");
  tensors.clear();
  for (const nn::NamedVariable& p : bert.parameters())
    if (!p.path.starts_with("classifier")) tensors.push_back({p.path, p.variable});
  io::write_safetensors(folder / "headless" / "model.safetensors", std::move(tensors));
  expect_error([&] { export_folder(folder / "headless", file); },
               {"headless", "classifier.weight", "random"});
  expect_error([&] { export_folder(folder / "nowhere", file); }, {"nowhere"});
  EXPECT_FALSE(fs::exists(file));
}

}  // namespace
}  // namespace ebb::onnx
