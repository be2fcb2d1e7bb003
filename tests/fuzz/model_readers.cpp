// Tensors, checkpoints, models, devices, plans and configurations.
#include <cstdlib>

#include "core/toml.h"
#include "ebb/io/adapter.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/device_file.h"
#include "ebb/io/plan_file.h"
#include "ebb/io/safetensors.h"
#include "fuzz/small_models.h"

namespace ebb::fuzz {

void read_safetensors(std::string_view bytes, const Folder& folder) {
  const io::SafetensorsFile file(write_file(folder, "x.safetensors", bytes));
  for (const auto& [name, entry] : file.entries()) {
    Variable same(zeros(entry.type.shape, entry.type.dtype));
    file.load(name, same);
    if (!is_floating(entry.type.dtype)) continue;
    Variable converted(zeros(entry.type.shape, entry.type.dtype == f32 ? bf16 : f32));
    file.load(name, converted);
  }
}

void read_checkpoint(std::string_view bytes, const Folder& folder) {
  SmallRun run;
  (void)io::load_checkpoint(write_file(folder, "run.safetensors", bytes), run.model, run.step);
}

void read_multilevel_checkpoint(std::string_view bytes, const Folder& folder) {
  SmallEngine run;
  run.engine.load(write_file(folder, "levels.safetensors", bytes));
}

// The weights next to the fuzzed config.json are those of a small model of the kind.
void read_gpt2_config(std::string_view bytes, const Folder& folder) {
  const Folder model = small_folder<models::Gpt2>(folder / "gpt2", small_gpt2);
  write_file(model, "config.json", bytes);
  (void)io::load_gpt2(model, device::cpu, f32);
}

void read_llama_config(std::string_view bytes, const Folder& folder) {
  const Folder model = small_folder<models::Llama>(folder / "llama", small_llama);
  write_file(model, "config.json", bytes);
  (void)io::load_llama(model, device::cpu, f32);
}

void read_bert_config(std::string_view bytes, const Folder& folder) {
  const Folder model = small_folder<models::BertClassifier>(folder / "bert", small_bert);
  write_file(model, "config.json", bytes);
  (void)io::load_bert(model, device::cpu, f32);
}

// The config.json next to the fuzzed model.safetensors is that of a small model in few bits. The
// bytes of weights may have any values: products with them must stay inside their buffers.
void read_packed_weights(std::string_view bytes, const Folder& folder) {
  const Folder model = small_packed(folder / "packed");
  write_file(model, "model.safetensors", bytes);
  const auto loaded = io::load_gpt2(model, device::cpu, f32);
  (void)eval(loaded->logits(Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {1, 3})));
}

// The same for a model without the zeros of its pattern 2:4.
void read_pair_weights(std::string_view bytes, const Folder& folder) {
  const Folder model = small_pairs(folder / "pairs");
  write_file(model, "model.safetensors", bytes);
  const auto loaded = io::load_gpt2(model, device::cpu, f32);
  (void)eval(loaded->logits(Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {1, 3})));
}

// The tensors next to the fuzzed adapter_config.json are those of a small adapter.
void read_adapter_config(std::string_view bytes, const Folder& folder) {
  auto model = make<models::Llama>(device::cpu, f32, small_llama);
  const Folder adapter = small_adapter(folder / "adapter");
  write_file(adapter, "adapter_config.json", bytes);
  io::load_adapter(adapter, model);
}

void read_device_file(std::string_view bytes, const Folder& folder) {
  (void)io::load_device(write_file(folder, "device.json", bytes));
}

// Accepted input is written and read back.
void read_tuning(std::string_view bytes, const Folder& folder) {
  write_file(folder, "device.tuning.json", bytes);
  const Tuning tuning = io::load_tuning(folder / "device.json");
  if (parse_tuning(tuning_text(tuning), "written") != tuning) std::abort();
}

// An accepted plan is run, if that takes little memory.
void read_plan(std::string_view bytes, const Folder& folder) {
  const Graph graph = small_graph();
  const Plan plan = io::load_plan(write_file(folder, "x.plan", bytes), graph);
  if (plan.peak > 64_MiB) return;
  Program program(graph, plan, {});
  program.run({eval(ones({4, 3}, f32))});
}

void read_toml(std::string_view bytes, const Folder&) { (void)toml::parse(bytes, "run.toml"); }

}  // namespace ebb::fuzz
