// Writes models that test ONNX export, and what ebb computes for them:
//
//   make_cases FOLDER
//
// For every case FOLDER/NAME/ gets model.onnx, for half types float32.onnx (Compute::in_float32),
// for decoders cache.onnx, for float32 int8.onnx and int4.onnx (ExportOptions::bits), for families
// with a Hugging Face form the folder hf/, and runs.safetensors. This has tensors RUN.INPUT for
// every input of a run, RUN.logits as ebb computes them and, for half types, RUN.logits_float32 by
// a float32 model with the same weights; for folders of float32 also RUN.logits_int8 and
// RUN.logits_int4 by a model with packed linear layers. check_onnx.py reads all of it.
#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <random>

#include "ebb/ebb.h"
#include "ebb/nn/adapt.h"
#include "ebb/onnx/export.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using onnx::ExportOptions;

// Values as large as those in trained models: logits of a few units.
std::vector<float> numbers(const std::string& path, const Shape& shape, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  const bool variance = path.ends_with("running_var"),
             scale = shape.rank() == 1 && path.ends_with("weight");
  const float size =
      shape.rank() > 1
          ? 1.0f / std::sqrt(static_cast<float>(shape.elements() / std::max(shape[0], shape[1])))
          : 0.2f;
  for (float& value : values) {
    value = size * normal(random) + (scale ? 1.0f : 0.0f);
    if (variance) value = 1.0f + std::abs(value);
  }
  return values;
}

void fill(const nn::ModuleBase& model) {
  std::mt19937 random(7);
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const nn::NamedVariable& v : list) {
      Variable variable = v.variable;
      const Tensor values =
          Tensor::from(numbers(v.path, v.variable.shape(), random), v.variable.shape());
      variable.assign(cast(values, variable.dtype()));
    }
}

// The weights of another model of the same config, in this one's dtype.
void copy_weights(const nn::ModuleBase& from, const nn::ModuleBase& to) {
  const auto copy = [](const auto& source, const auto& target) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      Variable variable = target[i].variable;
      variable.assign(cast(source[i].variable, variable.dtype()));
    }
  };
  copy(from.parameters(), to.parameters());
  copy(from.buffers(), to.buffers());
}

using Inputs = std::vector<io::NamedTensor>;

Tensor ids_of(std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * length; ++i)
    ids.push_back((7 * i * i + 3 * i + 1) % vocabulary);
  return Tensor::from(ids, {batch, length});
}

// Batches of 1 and 3, one token, odd lengths.
constexpr std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1}, {1, 7}, {3, 5}, {2, 13}};

std::vector<Inputs> token_runs(std::int64_t vocabulary, bool padded) {
  std::vector<Inputs> runs;
  for (const auto& [batch, length] : sizes) {
    std::vector<std::int64_t> mask(static_cast<std::size_t>(batch * length), 1);
    // Rows after the first end in padding, each with one token more.
    for (std::int64_t row = 1; padded && row < batch; ++row)
      for (std::int64_t t = length - row; t < length; ++t)
        mask[static_cast<std::size_t>(row * length + t)] = 0;
    runs.push_back({{"input_ids", ids_of(batch, length, vocabulary)},
                    {"attention_mask", Tensor::from(mask, {batch, length})}});
  }
  return runs;
}

std::vector<Inputs> real_runs(const std::vector<Shape>& shapes, DType dtype) {
  std::mt19937 random(11);
  std::vector<Inputs> runs;
  for (const Shape& shape : shapes)
    runs.push_back({{"input", cast(Tensor::from(numbers("", shape, random), shape) * 5.0, dtype)}});
  return runs;
}

Tensor logits(models::CausalLm& model, const Inputs& run) { return model.logits(run[0].tensor); }
Tensor logits(models::BertClassifier& model, const Inputs& run) {
  return model(run[0].tensor, cast(run[1].tensor, b8));
}
Tensor logits(models::BertMaskedLm& model, const Inputs& run) {
  return model(run[0].tensor, cast(run[1].tensor, b8));
}
template <class Model>
Tensor image_logits(Model& model, const Inputs& run) {
  return model(cast(run[0].tensor, model.dtype()));
}
Tensor logits(models::ResNet& model, const Inputs& run) { return image_logits(model, run); }
Tensor logits(models::Mlp& model, const Inputs& run) { return image_logits(model, run); }

class Cases {
 public:
  explicit Cases(fs::path folder) : folder_(std::move(folder)) {}

  template <class Model, class Config>
  void add(const std::string& name, const Config& config, DType dtype,
           const std::vector<Inputs>& runs) {
    const fs::path to = folder_ / name;
    fs::create_directories(to);
    const nn::MakeScope scope(device::cpu, dtype);
    Model model(config);
    fill(model);
    export_all(model, to);
    if constexpr (requires { io::save(model, to); }) io::save(model, to / "hf");

    std::vector<io::NamedTensor> tensors;
    const auto keep = [&](const std::string& tensor, const Tensor& value) {
      Variable kept(value);
      kept.materialise();
      tensors.push_back({tensor, kept});
    };
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (const io::NamedTensor& input : runs[i])
        keep(fmt::format("{}.{}", i, input.name), input.tensor);
      keep(fmt::format("{}.logits", i), logits(model, runs[i]));
    }
    if (is_half(dtype)) {
      const nn::MakeScope wide(device::cpu, f32);
      Model exact(config);
      copy_weights(model, exact);
      for (std::size_t i = 0; i < runs.size(); ++i)
        keep(fmt::format("{}.logits_float32", i), logits(exact, runs[i]));
    }
    if (dtype == f32)
      if constexpr (requires { io::save(model, to); })
        for (const LowBits bits : {LowBits::int8, LowBits::int4})
          for (std::size_t i = 0; i < runs.size(); ++i)
            if (const Tensor y = packed_logits(to / "hf", model, bits, runs[i]))
              keep(fmt::format("{}.logits_{}", i, ebb::name(bits)), y);
    io::write_safetensors(to / "runs.safetensors", std::move(tensors));
    std::cout << name << "\n";
  }

 private:
  // Computed by the folder's model with packed layers; empty if the file joins layers that ebb
  // packs one by one, with their own scales.
  template <class Model>
  static Tensor packed_logits(const fs::path& folder, const Model& model, LowBits bits,
                              const Inputs& run) {
    if constexpr (std::is_same_v<Model, models::Llama>)
      if (model.config().family == models::DecoderFamily::gpt_neox && bits == LowBits::int4)
        return {};
    const auto head = std::is_same_v<Model, models::BertMaskedLm> ? io::EncoderHead::masked_lm
                                                                  : io::EncoderHead::classifier;
    const io::ModelFolder opened = io::open_folder(folder, device::cpu, f32, head);
    nn::adapt(*opened.module, {.base = bits});
    opened.load();
    if (opened.lm) return eval(opened.lm->logits(run[0].tensor));
    const Tensor mask = cast(run[1].tensor, b8);
    return eval(opened.masked_lm ? opened.masked_lm->logits(run[0].tensor, mask)
                                 : opened.classifier->logits(run[0].tensor, mask));
  }

  template <class Model>
  static void export_all(const Model& model, const fs::path& to) {
    onnx::export_model(model, to / "model.onnx");
    if (is_half(model.dtype()))
      onnx::export_model(model, to / "float32.onnx", {.compute = onnx::Compute::in_float32});
    if constexpr (std::is_base_of_v<models::CausalLm, Model>)
      onnx::export_model(model, to / "cache.onnx",
                         {.cache = onnx::Cache::yes, .external_data = onnx::ExternalData::yes});
    if constexpr (!std::is_same_v<Model, models::ResNet>)
      if (model.dtype() == f32)
        for (const LowBits bits : {LowBits::int8, LowBits::int4})
          onnx::export_model(model, to / fmt::format("{}.onnx", ebb::name(bits)),
                             {.opset = onnx::first_quantised_opset, .bits = bits});
    if (model.dtype() == f32)
      for (int opset = onnx::first_opset + 1; opset <= onnx::last_opset; ++opset)
        onnx::export_model(model, to / fmt::format("opset{}.onnx", opset), {.opset = opset});
  }

  fs::path folder_;
};

template <class Config, class... Changes>
Config changed(Config config, const Changes&... changes) {
  (changes(config), ...);
  return config;
}

models::Gpt2Config small_gpt2() {
  models::Gpt2Config c;
  c.vocabulary = 61, c.context = 40, c.layers = 2, c.heads = 3, c.width = 24;
  return c;
}
models::LlamaConfig small_llama() {
  models::LlamaConfig c;
  c.vocabulary = 61, c.width = 24, c.hidden = 40, c.layers = 2, c.heads = 6, c.key_value_heads = 2,
  c.context = 40;
  return c;
}
// Llama's relatives, each with its differences, and scaled rotary positions.
std::vector<std::pair<std::string, models::LlamaConfig>> relatives() {
  using models::DecoderFamily, models::RopeScaling;
  std::vector<std::pair<std::string, models::LlamaConfig>> all;
  const auto add = [&](const char* name, DecoderFamily family, const auto& change) {
    models::LlamaConfig c = small_llama();
    c.family = family;
    change(c);
    all.emplace_back(name, c);
  };
  add("mistral", DecoderFamily::mistral, [](auto& c) { c.window = 4; });
  add("mistral-no-window", DecoderFamily::mistral, [](auto& c) { c.head_size = 6; });
  add("qwen2", DecoderFamily::qwen2,
      [](auto& c) { c.attention_bias = true, c.output_bias = false, c.tied = true; });
  add("qwen2-window", DecoderFamily::qwen2, [](auto& c) {
    c.attention_bias = true, c.output_bias = false;
    c.layers = 3, c.window = 3, c.windowed = {false, true, true};
  });
  add("qwen3", DecoderFamily::qwen3, [](auto& c) { c.head_norms = true, c.head_size = 10; });
  add("gpt_neox", DecoderFamily::gpt_neox, [](auto& c) {
    c.heads = c.key_value_heads = 3, c.rotary_size = 4, c.activation = nn::Activation::gelu;
    c.attention_bias = c.mlp_bias = c.layer_norms = c.parallel = true, c.gated = false;
  });
  add("gpt_neox-in-turn", DecoderFamily::gpt_neox, [](auto& c) {
    c.heads = c.key_value_heads = 2, c.rotary_size = 12, c.activation = nn::Activation::gelu_tanh;
    c.attention_bias = c.mlp_bias = c.layer_norms = true, c.gated = false, c.tied = true;
  });
  const auto add_rope = [&](const char* name, const models::Rope& rope) {
    add(name, DecoderFamily::llama,
        [&](auto& c) { c.heads = 2, c.key_value_heads = 1, c.rope = rope; });
  };
  add_rope("llama-rope-linear", {.scaling = RopeScaling::linear, .factor = 2.5});
  add_rope("llama-rope-llama3",
           {.scaling = RopeScaling::llama3, .factor = 4.0, .original_context = 20});
  add_rope("llama-rope-yarn", {.scaling = RopeScaling::yarn,
                               .factor = 4.0,
                               .original_context = 10,
                               .magnitude = 1.1386294361119891});
  return all;
}
models::BertConfig small_bert() {
  models::BertConfig c;
  c.vocabulary = 61, c.width = 24, c.layers = 2, c.heads = 3, c.hidden = 40, c.context = 40,
  c.classes = 3;
  return c;
}

void add_language_models(Cases& cases) {
  using models::Gpt2, models::Llama, models::LanguageModel;
  const auto runs = token_runs(61, false);
  cases.add<Gpt2>("gpt2", small_gpt2(), f32, runs);
  cases.add<Gpt2>("gpt2-own-head",
                  changed(small_gpt2(),
                          [](auto& c) {
                            c.tied = false, c.hidden = 20, c.scale_by_inverse_layer = true,
                            c.eps = 1e-3;
                          }),
                  f32, runs);
  cases.add<Gpt2>("gpt2-unscaled",
                  changed(small_gpt2(), [](auto& c) { c.scale_attention = false, c.heads = 1; }),
                  f32, runs);
  for (int i = 0; i <= static_cast<int>(nn::Activation::sqrt_softplus); ++i) {
    const auto activation = static_cast<nn::Activation>(i);
    cases.add<Gpt2>(
        fmt::format("gpt2-{}", nn::name(activation)),
        changed(small_gpt2(), [&](auto& c) { c.activation = activation, c.layers = 1; }), f32,
        runs);
  }
  cases.add<Llama>("llama", small_llama(), f32, runs);
  cases.add<Llama>(
      "llama-tied",
      changed(small_llama(),
              [](auto& c) { c.tied = true, c.heads = 3, c.key_value_heads = 3, c.head_size = 10; }),
      f32, runs);
  cases.add<Llama>("llama-biases",
                   changed(small_llama(),
                           [](auto& c) {
                             c.attention_bias = c.mlp_bias = true, c.key_value_heads = 1,
                             c.rope_base = 500.0;
                           }),
                   f32, runs);
  for (const auto& [name, config] : relatives()) cases.add<Llama>(name, config, f32, runs);
  models::LanguageModelConfig lm;
  lm.vocabulary = 61, lm.layers = 2, lm.heads = 3, lm.head_size = 10, lm.context = 40;
  cases.add<LanguageModel>("lm", lm, f32, runs);
  for (const DType dtype : {f16, bf16}) {
    cases.add<Gpt2>(fmt::format("gpt2-{}", name(dtype)), small_gpt2(), dtype, runs);
    cases.add<Llama>(fmt::format("llama-{}", name(dtype)), small_llama(), dtype, runs);
    for (const auto& [relative, config] : relatives())
      if (relative.find('-') == std::string::npos)
        cases.add<Llama>(fmt::format("{}-{}", relative, name(dtype)), config, dtype, runs);
  }
}

void add_classifiers(Cases& cases) {
  using models::BertClassifier, models::Mlp, models::ResNet, models::ResNetConfig;
  const auto texts = token_runs(61, true);
  cases.add<BertClassifier>("bert", small_bert(), f32, texts);
  cases.add<BertClassifier>(
      "bert-one-class",
      changed(small_bert(),
              [](auto& c) { c.classes = 1, c.activation = nn::Activation::relu, c.types = 1; }),
      f32, texts);
  using models::BertMaskedLm, models::EncoderFamily;
  const auto roberta = changed(small_bert(), [](auto& c) {
    c.family = EncoderFamily::roberta, c.padding = 1, c.types = 1, c.eps = 1e-5;
  });
  const auto distilbert = changed(small_bert(), [](auto& c) {
    c.family = EncoderFamily::distilbert, c.types = 0, c.padding = 0;
  });
  cases.add<BertClassifier>("roberta", roberta, f32, texts);
  cases.add<BertClassifier>("distilbert", distilbert, f32, texts);
  const auto own_decoder = [](auto& c) { c.tied = false, c.activation = nn::Activation::relu; };
  for (const auto& [family, config] :
       {std::pair("bert", small_bert()), {"roberta", roberta}, {"distilbert", distilbert}}) {
    cases.add<BertMaskedLm>(fmt::format("{}-masked-words", family), config, f32, texts);
    cases.add<BertMaskedLm>(fmt::format("{}-masked-words-own", family),
                            changed(config, own_decoder), f32, texts);
  }
  const std::vector<Shape> images{{1, 3, 8, 8}, {3, 3, 9, 7}};
  const ResNetConfig basic{ResNetConfig::Block::basic, {2, 1}, {8, 12}, 3, 5},
      bottleneck{ResNetConfig::Block::bottleneck, {1, 2}, {4, 6}, 3, 5};
  cases.add<ResNet>("resnet", basic, f32, real_runs(images, f32));
  cases.add<ResNet>("resnet-bottleneck",
                    changed(bottleneck, [](auto& c) { c.layout = ImageLayout::channels_last; }),
                    f32, real_runs(images, f32));
  const std::vector<Shape> rows{{1, 17}, {3, 17}};
  const models::MlpConfig mlp{.inputs = 17, .hidden = 9, .classes = 5, .layers = 3};
  cases.add<Mlp>("mlp", mlp, f32, real_runs(rows, f32));
  cases.add<Mlp>("mlp-one-layer", changed(mlp, [](auto& c) { c.layers = 1; }), f32,
                 real_runs(rows, f32));
  for (const DType dtype : {f16, bf16}) {
    cases.add<BertClassifier>(fmt::format("bert-{}", name(dtype)), small_bert(), dtype, texts);
    cases.add<BertClassifier>(fmt::format("roberta-{}", name(dtype)), roberta, dtype, texts);
    cases.add<BertClassifier>(fmt::format("distilbert-{}", name(dtype)), distilbert, dtype, texts);
    cases.add<BertMaskedLm>(fmt::format("bert-masked-words-{}", name(dtype)), small_bert(), dtype,
                            texts);
    cases.add<ResNet>(fmt::format("resnet-{}", name(dtype)), basic, dtype,
                      real_runs(images, dtype));
    cases.add<Mlp>(fmt::format("mlp-{}", name(dtype)), mlp, dtype, real_runs(rows, dtype));
  }
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_cases FOLDER\n";
    return 2;
  }
  try {
    ebb::Cases cases(argv[1]);
    ebb::add_language_models(cases);
    ebb::add_classifiers(cases);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
