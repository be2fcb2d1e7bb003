// The smallest objects that readers can fill: models, a training run, an engine of one level.
#pragma once

#include "ebb/data/generated.h"
#include "ebb/data/loader.h"
#include "ebb/ebb.h"
#include "ebb/io/adapter.h"
#include "ebb/io/hugging_face.h"
#include "ebb/io/safetensors.h"
#include "ebb/mlo/engine.h"
#include "ebb/models/bert.h"
#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"
#include "ebb/nn/adapt.h"
#include "ebb/nn/layers.h"
#include "fuzz/readers.h"
#include "io/hugging_face/packed.h"

namespace ebb::fuzz {

inline const models::Gpt2Config small_gpt2{
    .vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 2};
inline const models::LlamaConfig small_llama{.vocabulary = 5,
                                             .width = 2,
                                             .hidden = 2,
                                             .layers = 1,
                                             .heads = 1,
                                             .key_value_heads = 1,
                                             .context = 4};
inline const models::BertConfig small_bert{
    .vocabulary = 5, .width = 2, .layers = 1, .heads = 1, .hidden = 2, .context = 4};

// A Hugging Face folder of the model, written when it is first asked for.
template <class Model, class Config>
Folder small_folder(const Folder& folder, const Config& config) {
  if (!std::filesystem::exists(folder / "model.safetensors"))
    io::save(make<Model>(device::cpu, f32, config), folder);
  return folder;
}

// A folder of small_gpt2 in int4, written when it is first asked for.
inline Folder small_packed(const Folder& folder) {
  if (std::filesystem::exists(folder / "model.safetensors")) return folder;
  auto model = make<models::Gpt2>(device::cpu, f32, small_gpt2);
  nn::adapt(model, {.base = LowBits::int4});
  io::save_packed(model, folder);
  return folder;
}

// A folder without the zeros of its pattern 2:4, written when it is first asked for.
inline Folder small_pairs(const Folder& folder) {
  if (std::filesystem::exists(folder / "model.safetensors")) return folder;
  models::Gpt2Config config = small_gpt2;
  config.width = 4;  // a multiple of 4, and not of the 8 columns of a byte
  auto model = make<models::Gpt2>(device::cpu, f32, config);
  nn::pack_layers(model, nn::Pairs{});
  io::save_packed(model, folder);
  return folder;
}

// A folder of small_llama in two files, without an index, written when it is first asked for.
inline Folder small_shards(const Folder& folder) {
  const Folder single = folder / "model.safetensors", first = folder / "one.safetensors",
               second = folder / "two.safetensors";
  if (std::filesystem::exists(second)) return folder;
  small_folder<models::Llama>(folder, small_llama);
  {
    const io::SafetensorsFile file(single);
    std::vector<io::NamedTensor> tensors[2];
    for (const auto& [name, entry] : file.entries()) {
      const Variable value(zeros(entry.type.shape, entry.type.dtype));
      file.load(name, value);
      tensors[name.starts_with("model.layers.") ? 1 : 0].push_back({name, value});
    }
    io::write_safetensors(first, std::move(tensors[0]), {{"format", "pt"}});
    io::write_safetensors(second, std::move(tensors[1]), {{"format", "pt"}});
  }
  std::filesystem::remove(single);
  return folder;
}

// A folder of an adapter of small_llama, written when it is first asked for.
inline Folder small_adapter(const Folder& folder) {
  if (std::filesystem::exists(folder / "adapter_model.safetensors")) return folder;
  auto model = make<models::Llama>(device::cpu, f32, small_llama);
  nn::adapt(model, {.lora = nn::LoraOptions{.rank = 1}});
  io::save_adapter(model, folder, "small");
  return folder;
}

struct SmallNet : nn::Module<SmallNet> {
  nn::Linear only{at("only"), 4, 2};
  Tensor forward(const Tensor& x) { return only(flatten(x, 1)); }
};

struct SmallRun {
  SmallNet model = make<SmallNet>(device::cpu, f32);
  TrainStep step{model, optim::AdamW{.lr = 0.1},
                 [this](const Batch& b) { return cross_entropy(model(b.x()), b.y()); }};
};

// A step of descent.
inline Graph small_graph() {
  const Tensor x = input({{4, 3}, f32}, "x");
  const Variable w(full({3, 5}, 0.5, f32)), b(zeros({5}, f32));
  const Tensor loss = mean(square(tanh(matmul(x, w) + b)));
  const std::vector<Tensor> gradients = grad(loss, std::vector<Tensor>{w, b});
  return {.inputs = {x},
          .outputs = {loss},
          .updates = {{w, w - gradients[0] * 0.1}, {b, b - gradients[1] * 0.1}}};
}

struct SmallProblem : mlo::Problem {
  using Problem::Problem;
  mlo::StepOutput training_step(const Batch& b) override {
    return cross_entropy(static_cast<SmallNet&>(module())(b.x()), b.y());
  }
};

struct SmallEngine {
  std::shared_ptr<data::GaussianImages> images =
      std::make_shared<data::GaussianImages>(data::GaussianImageOptions{
          .classes = 2, .channels = 1, .height = 2, .width = 2, .images = 8});
  mlo::LoaderPtr loader = std::make_shared<data::Loader>(
      images, data::LoaderOptions{.batch = 2, .seed = 1, .prefetch = 0});
  SmallNet net = make<SmallNet>(device::cpu, f32);
  SmallProblem problem{"only",
                       net,
                       optim::SGD{.lr = 0.1, .momentum = 0.9},
                       {{.gradient_accumulation = 2}, optim::constant(), {loader}}};
  mlo::Engine engine{{&problem}, {}, {.seed = 3}};
};

}  // namespace ebb::fuzz
