// Tensors, checkpoints, models, devices, plans, configurations and results.
#include <cstdlib>

#include "cli/ablate/results.h"
#include "cli/logged_summary.h"
#include "core/toml.h"
#include "ebb/io/adapter.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/device_file.h"
#include "ebb/io/open_lm.h"
#include "ebb/io/plan_file.h"
#include "ebb/io/safetensors.h"
#include "ebb/workloads/data_fingerprint.h"
#include "ebb/workloads/train_spec.h"
#include "fuzz/small_models.h"
#include "fuzz/small_records.h"

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
  const auto path = write_file(folder, "run.safetensors", bytes);
  (void)io::read_summary(path);
  (void)io::load_checkpoint(path, run.model, run.step);
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

// The adapter_config.json next to the fuzzed tensors is that of a small adapter.
void read_adapter_weights(std::string_view bytes, const Folder& folder) {
  auto model = make<models::Llama>(device::cpu, f32, small_llama);
  const Folder adapter = small_adapter(folder / "adapter_tensors");
  write_file(adapter, "adapter_model.safetensors", bytes);
  io::load_adapter(adapter, model);
}

// The files that the fuzzed index can name are those of a small model.
void read_index(std::string_view bytes, const Folder& folder) {
  const Folder model = small_shards(folder / "shards");
  write_file(model, "model.safetensors.index.json", bytes);
  (void)io::load_llama(model, device::cpu, f32);
}

// Files that are a list of settings or results: the first byte says which. They are small, and
// what is done with them is short.
void read_records(std::string_view bytes, const Folder& folder) {
  const char kind = bytes.empty() ? '\0' : bytes[0];
  const std::string_view rest = bytes.substr(bytes.empty() ? 0 : 1);
  const Folder own = folder / "records";
  std::filesystem::create_directories(own);
  if (kind == 'g') {  // generation_config.json
    write_file(own, "config.json", R"({"eos_token_id":7})");
    write_file(own, "generation_config.json", rest);
    (void)io::end_ids(own);
    (void)io::unused_generation_settings(own);
  } else if (kind == 'r') {  // run.json
    write_file(own, "log.jsonl", small_log);
    write_file(own, "run.json", rest);
    (void)cli::read_summary(own);
  } else if (kind == 'a' || kind == 't') {  // results.json or timelines.json of ebb ablate
    write_file(own, "results.json", kind == 'a' ? rest : small_results);
    write_file(own, "timelines.json", kind == 't' ? rest : small_timelines);
    (void)cli::load_rows(own, {{"workload", "lm"}});
  } else if (kind == 'd') {  // the data's fingerprint in a checkpoint
    (void)workloads::data_fingerprint_from_json(rest);
  } else {  // the specification in a checkpoint; an accepted one is written and read back
    const workloads::TrainSpec spec = workloads::train_spec_from_json(rest);
    if (workloads::train_spec_from_json(workloads::to_json(spec)) != spec) std::abort();
  }
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
