// Folders without the zeros of their pattern 2:4: written by `ebb prune --packed`, read by the
// other verbs, and refused if they are damaged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/nn/adapt.h"
#include "ebb/onnx/export.h"
#include "ebb/optim/by_name.h"
#include "ebb/pairs.h"
#include "ebb/train/eval_step.h"
#include "support/command_line.h"
#include "support/model_folders.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string tokens_file = (golden_models / "tokens.bin").string();

Json json_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json 2>/dev/null");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  if (outcome.code != 0) return {};
  const std::size_t end = outcome.output.find_last_not_of('\n'),
                    begin = outcome.output.rfind('\n', end);
  return Json::parse(outcome.output.substr(begin == std::string::npos ? 0 : begin + 1));
}

// A folder of a model in both forms: pruned to 2:4 with its zeros, and without them.
class PairFolder : public testing::Test {
 protected:
  void prune(const fs::path& from, const std::string& options = "") {
    const std::string start =
        "prune --model " + from.string() + " --pattern 2:4" + options + " --save ";
    whole_report = json_of(start + whole());
    report = json_of(start + packed() + " --packed");
  }
  std::string whole() const { return (place / "whole").string(); }
  std::string packed() const { return (place / "packed").string(); }

  // The tensors of the packed folder, changed.
  void change(const std::function<void(std::map<std::string, Tensor>&)>& how) const {
    const fs::path path = fs::path(packed()) / "model.safetensors";
    std::map<std::string, Tensor> tensors;
    {
      const io::SafetensorsFile file(path);
      for (const auto& [name, entry] : file.entries())
        tensors[name] = Tensor::from_bytes(file.bytes(name), entry.type);
    }
    how(tensors);
    std::vector<io::NamedTensor> list;
    for (const auto& [name, tensor] : tensors) list.push_back({name, eval(tensor)});
    io::write_safetensors(path, std::move(list));
  }
  void expect_refused(const std::vector<std::string>& parts) const {
    expect_error([&] { io::open_folder(packed(), device::cpu, f32).load(); }, parts);
  }

  TemporaryFolder place;
  Json whole_report, report;
};

std::vector<fs::path> folders() {
  const fs::path families = golden_models / "../families";
  return {golden_models / "gpt2", golden_models / "llama", families / "gpt_neox",
          families / "qwen3"};
}

// The same weights to the bit; products add them in another order.
TEST_F(PairFolder, HasTheWeightsOfTheWholeFolder) {
  for (const fs::path& from : folders()) {
    prune(from);
    const auto pairs = io::open_folder(packed(), device::cpu, f32),
               dense = io::open_folder(whole(), device::cpu, f32);
    EXPECT_TRUE(nn::has_pairs(*pairs.module)) << from;
    EXPECT_EQ(pairs.module->parameter_count(), dense.module->parameter_count());
    pairs.load(), dense.load();
    const auto spread = nn::merged_parameters(*pairs.module),
               plain = nn::merged_parameters(*dense.module);
    ASSERT_EQ(spread.size(), plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(spread[i].path, plain[i].path);
      EXPECT_EQ(values_of(spread[i].value), values_of(plain[i].value)) << plain[i].path;
    }
    // Losses of about 4, from sums of some dozens of products in float32.
    EXPECT_NEAR(causal_loss(*pairs.lm), causal_loss(*dense.lm), 2e-6) << from;
    // Saved again, it is the same folder.
    pairs.save(place / "again");
    for (const char* file : {"model.safetensors", "config.json"})
      EXPECT_EQ(contents(place / "again" / file), contents(fs::path(packed()) / file)) << from;
    // Exported, it is the whole model.
    onnx::export_folder(packed(), place / "pairs.onnx", {});
    onnx::export_model(*pairs.module, place / "memory.onnx", {});
    onnx::export_folder(whole(), place / "whole.onnx", {});
    EXPECT_TRUE(contents(place / "pairs.onnx") == contents(place / "whole.onnx")) << from;
    EXPECT_TRUE(contents(place / "memory.onnx") == contents(place / "whole.onnx")) << from;
  }
}

TEST_F(PairFolder, TakesNineSixteenthsInBfloat16) {
  models::LlamaConfig config;
  config.vocabulary = 61, config.width = 64, config.hidden = 160, config.layers = 2;
  config.heads = 4, config.key_value_heads = 2, config.context = 16;
  io::save(make<models::Llama>(device::cpu, bf16, config), place / "dense");
  prune(place / "dense");
  const std::int64_t matrices = 2 * report.at("weights").get<std::int64_t>(),
                     before = report.at("bytes").at("before"),
                     after = report.at("bytes").at("after");
  EXPECT_EQ(before - after, matrices - 9 * matrices / 16);
  EXPECT_EQ(report.at("parameters").at("after"), report.at("parameters").at("before"));
  EXPECT_FALSE(report.at("loads_in_transformers").get<bool>());
  EXPECT_EQ(whole_report.at("bytes").at("after"), before);
  // The file has these bytes and a header.
  std::int64_t stored = 0;
  const io::SafetensorsFile file(fs::path(packed()) / "model.safetensors");
  for (const auto& [name, entry] : file.entries()) stored += entry.type.bytes().count;
  EXPECT_EQ(stored, after);
  EXPECT_EQ(file.at("model.layers.0.mlp.down_proj.weight").type, (TensorType{{64, 80}, bf16}));
  EXPECT_EQ(file.at("model.layers.0.mlp.down_proj.positions").type, (TensorType{{64, 20}, u8}));
  EXPECT_EQ(read_json(fs::path(packed()) / "config.json").at("quantization_config"),
            (Json{{"quant_method", "ebb"}, {"pattern", "2:4"}}));
  EXPECT_LT(static_cast<double>(fs::file_size(fs::path(packed()) / "model.safetensors")),
            0.66 * static_cast<double>(fs::file_size(fs::path(whole()) / "model.safetensors")));
  // A folder that has the pattern already loses nothing but its zeros.
  const Json again = json_of("prune --pattern 2:4 --packed --model " + whole() + " --save " +
                             (place / "b").string());
  EXPECT_EQ(contents(place / "b" / "model.safetensors"),
            contents(fs::path(packed()) / "model.safetensors"));
}

// Wanda and SparseGPT write the same folder as with zeros; the reported losses are the same.
TEST_F(PairFolder, EveryMethodWritesIt) {
  for (const char* method : {"wanda", "sparsegpt"}) {
    prune(golden_models / "gpt2", std::string(" --method ") + method + " --data " + tokens_file);
    EXPECT_EQ(report.at("loss"), whole_report.at("loss")) << method;
    const auto pairs = io::load_causal_lm(packed(), device::cpu, f32),
               dense = io::load_causal_lm(whole(), device::cpu, f32);
    const auto a = nn::merged_parameters(*pairs.module), b = nn::merged_parameters(*dense.module);
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(values_of(a[i].value), values_of(b[i].value)) << method << a[i].path;
  }
}

TEST_F(PairFolder, EncodersToo) {
  prune(golden_models / "bert");
  EXPECT_NEAR(folder_loss(packed(), f32), folder_loss(whole(), f32), 2e-6);
}

TEST_F(PairFolder, IsEvaluatedAndGeneratesWithinThePlan) {
  // Weights that take more than the workspace in which packed ones are unpacked.
  models::Gpt2Config config{.vocabulary = 61, .context = 24, .layers = 4, .heads = 4, .width = 256};
  io::save(make<models::Gpt2>(device::cpu, f32, config), place / "dense");
  prune(place / "dense");
  const auto eval_of = [&](const std::string& options) {
    return json_of("eval --tokens " + tokens_file + " --model " + options);
  };
  const Json pairs = eval_of(packed()), dense = eval_of(whole()),
             read = eval_of(whole() + " --base 2:4");
  EXPECT_NEAR(pairs.at("loss").get<double>(), dense.at("loss").get<double>(), 1e-5);
  EXPECT_EQ(read, pairs);  // the zeros of the folder are left out when it is read
  EXPECT_LT(pairs.at("planned_peak_bytes"), dense.at("planned_peak_bytes"));

  for (const char* precision : {"fp32", "bf16"}) {
    const std::string start = std::string("generate --prompt-ids 5,2,1 --max-tokens 9 ") +
                              "--ignore-end --precision " + precision + " --model ";
    const Json few = json_of(start + packed()), all = json_of(start + whole());
    EXPECT_EQ(few.at("planned_peak_bytes"), few.at("measured_peak_bytes")) << precision;
    EXPECT_LT(few.at("planned_peak_bytes"), all.at("planned_peak_bytes")) << precision;
    EXPECT_EQ(few.at("ids")[0].size(), 9u);
    if (std::string(precision) == "fp32") {
      EXPECT_EQ(few.at("ids"), all.at("ids"));
    }
  }
}

// Training changes only the live weights, as with masks, and keeps state only for these.
TEST_F(PairFolder, IsTrainedFurther) {
  prune(golden_models / "gpt2");
  const std::string start =
      "train --steps 4 --sequence 8 --batch 2 --eval-batches 0 --lr 0.01 "
      "--tokens int32 --data " +
      tokens_file + " --model ";
  const Json pairs = json_of(start + packed() + " --save " + (place / "tuned").string()),
             masked =
                 json_of(start + whole() + " --sparsity-pattern 2:4 --sparsity-schedule constant");
  ASSERT_EQ(pairs.at("losses").size(), 4u);
  for (std::size_t i = 0; i < 4; ++i)  // AdamW divides by small numbers, and so enlarges rounding
    EXPECT_NEAR(pairs["losses"][i].get<double>(), masked["losses"][i].get<double>(), 1e-3) << i;
  EXPECT_LT(pairs["losses"][3], pairs["losses"][0]);
  EXPECT_EQ(pairs.at("planned_peak_bytes"), pairs.at("measured_peak_bytes"));
  // The positions stay, and the folder stays packed.
  const io::SafetensorsFile before(fs::path(packed()) / "model.safetensors"),
      after(place / "tuned" / "model.safetensors");
  ASSERT_EQ(after.entries().size(), before.entries().size());
  for (const auto& [name, entry] : before.entries())
    if (name.ends_with("positions")) {
      EXPECT_EQ(after.bytes(name), before.bytes(name)) << name;
    }
  EXPECT_NE(after.bytes("transformer.h.0.mlp.c_fc.weight"),
            before.bytes("transformer.h.0.mlp.c_fc.weight"));

  const auto plan_of = [](const std::string& folder) {
    const auto open = io::open_folder(folder, device::cpu, f32);
    TrainStep step(*open.module, optim::by_name("adamw"),
                   [&](const Batch& b) { return open.lm->loss(b.x(), b.y()); });
    const TensorType ids{{1, 8}, i32};
    Bytes trained;
    for (const nn::NamedVariable& p : open.module->trainable_parameters())
      trained += p.variable.type().bytes();
    return std::pair(step.plan({ids, ids}).at_peak[Category::optimizer], trained);
  };
  models::Gpt2Config config{.vocabulary = 61, .context = 24, .layers = 2, .heads = 4, .width = 256};
  io::save(make<models::Gpt2>(device::cpu, f32, config), place / "wide");
  prune(place / "wide");
  const auto [state, trained] = plan_of(packed());
  const auto [whole_state, whole_trained] = plan_of(whole());
  // Half of the blocks' matrices, 2 · 12 · 256² weights, and of their two moments.
  const Bytes half{4 * 2 * 12 * 256 * 256 / 2};
  EXPECT_EQ(whole_trained - trained, half);
  EXPECT_EQ(whole_state - state, 2 * half);
}

TEST_F(PairFolder, IsABaseOfAdapters) {
  prune(golden_models / "llama");
  const std::string start =
      "train --steps 3 --sequence 8 --batch 2 --eval-batches 0 --lora 2 "
      "--tokens int32 --data " +
      tokens_file + " --model ";
  const Json pairs = json_of(start + packed() + " --save " + (place / "adapter").string()),
             read = json_of(start + whole() + " --base 2:4");
  EXPECT_EQ(pairs.at("losses"), read.at("losses"));
  EXPECT_EQ(pairs.at("planned_peak_bytes"), pairs.at("measured_peak_bytes"));
  const auto loss = [&](const std::string& options) {
    return json_of("eval --tokens " + tokens_file + " --model " + options).at("loss").get<double>();
  };
  const double adapted = loss(packed() + " --adapter " + (place / "adapter").string());
  // With merged adapters no weight is zero: the merged folder is a plain one.
  json_of(start + packed() + " --merge --save " + (place / "merged").string());
  EXPECT_FALSE(nn::has_pairs(*io::open_folder(place / "merged", device::cpu, f32).module));
  EXPECT_NEAR(loss((place / "merged").string()), adapted, 1e-5);
}

TEST_F(PairFolder, WhatCannotBeDoneIsRefusedByName) {
  prune(golden_models / "gpt2");
  const std::string gpt2 = (golden_models / "gpt2").string(),
                    save = " --save " + (place / "x").string(),
                    train =
                        "train --steps 1 --sequence 8 --batch 1 --eval-batches 0 "
                        "--tokens int32 --data " +
                        tokens_file + " --model ";
  for (const char* other : {" --pattern 1:4", " --sparsity 0.5", " --keep 0.5"})
    expect_usage_error("prune --packed --model " + gpt2 + other + save, "needs --pattern 2:4");
  expect_failure("prune --keep 0.5 --model " + packed() + save, 1,
                 "prune the folder that it was made from");
  expect_failure("eval --tokens " + tokens_file + " --base int8 --model " + packed(), 1,
                 "already stored without the zeros");
  expect_failure("generate --prompt-ids 1 --max-tokens 2 --bits 8 --model " + packed(), 1,
                 "already stored without the zeros");
  expect_usage_error("eval --base 2:4 --tokens " + tokens_file + save + " --model " + whole(),
                     "ebb prune --pattern 2:4 --packed");
  expect_usage_error("eval --base 2:4 --tokens " + tokens_file + " --calibrate " + tokens_file +
                         " --model " + whole(),
                     "--calibrate");
  expect_failure(train + packed() + " --sparsity 0.5 --sparsity-schedule constant", 1,
                 "train it without masks");
  expect_failure(train + packed() + " --prune 0.5 --prune-schedule constant --prune-from 1", 1,
                 "cannot be pruned further");
  // A model that does not have the pattern.
  expect_failure("eval --base 2:4 --tokens " + tokens_file + " --model " + gpt2, 1,
                 "\"transformer.h.0.attn.c_attn.weight\": the pattern 2:4 has at most two weights "
                 "other than zero in each four, but output 0 has 4 in its inputs 0 to 3");
  const auto loaded = io::load_causal_lm(gpt2, device::cpu, f32);
  expect_error([&] { nn::pack_layers(*loaded.module, nn::Pairs{}); },
               {"transformer.h.0.attn.c_attn.weight", "output 0 has 4", "inputs 0 to 3"});
  auto net = make<nn::Linear>(device::cpu, f32, nn::root_place(), 8, 8);
  expect_error([&] { nn::pack_layers(net, nn::Pairs{}); }, {"inside blocks"});
  expect_error([] { nn::weight_form_by_name("2:5"); }, {"int8, int4, nf4 or 2:4", "2:5"});
}

TEST_F(PairFolder, DamagedFilesAreRefused) {
  const std::string weight = "transformer.h.1.mlp.c_fc.weight",
                    positions = "transformer.h.1.mlp.c_fc.positions";
  const auto with = [&](const std::function<void(std::map<std::string, Tensor>&)>& how,
                        const std::vector<std::string>& parts) {
    prune(golden_models / "gpt2");
    change(how);
    expect_refused(parts);
  };
  with([&](auto& t) { t.erase(positions); }, {weight, "no tensor", positions});
  with([&](auto& t) { t.erase(weight); }, {"no tensor", weight});
  with([&](auto& t) { t[positions] = slice(t[positions], 0, 0, 1); },
       {positions, "must be uint8 (64, 2)", "(1, 2)"});
  with([&](auto& t) { t[positions] = cast(t[positions], i32); }, {positions, "uint8", "int32"});
  with([&](auto& t) { t[weight] = slice(t[weight], 1, 0, 4); }, {weight, "(64, 8)", "(64, 4)"});
  with([&](auto& t) { t["transformer.h.1.positions"] = t[positions]; },
       {"transformer.h.1.positions", "no part of the model"});
  // Output 3, inputs 4 to 7: three bits, no bit.
  for (const auto& [bits, count] : {std::pair(0b1011, "3"), {0, "0"}})
    with(
        [&, bits = bits](auto& t) {
          auto bytes = t[positions].template to_vector<std::uint8_t>();
          bytes[3 * 2] = static_cast<std::uint8_t>((bytes[6] & 15) | bits << 4);
          t[positions] = Tensor::from(bytes, t[positions].shape());
        },
        {positions, "output 3", "inputs 4 to 7", count});
  // A whole matrix is accepted if it has the pattern, and refused otherwise.
  const auto with_matrix = [&](double third) {
    prune(golden_models / "gpt2");
    change([&](auto& t) {
      auto matrix = values_of(spread_pairs(t[weight], t[positions]));
      for (std::size_t j = 0; j < 4; ++j)
        if (matrix[5 * 16 + 8 + j] == 0.0) matrix[5 * 16 + 8 + j] = third;
      t[weight] = cast(transpose(Tensor::from(matrix, {64, 16})), f32);
      t.erase(positions);
    });
  };
  with_matrix(0.0);
  EXPECT_NEAR(folder_loss(packed(), f32), folder_loss(whole(), f32), 2e-6);
  with_matrix(0.5);
  expect_refused({weight, "output 5 has 4", "inputs 8 to 11"});
  // A model whose matrices cannot have the pattern.
  FolderCopy copy("gpt2");
  copy.set(
      {{"quantization_config", {{"quant_method", "ebb"}, {"pattern", "2:4"}}}, {"n_inner", 30}});
  expect_error([&] { io::open_folder(copy.path(), device::cpu, f32); },
               {"config.json", "2:4", "multiple of 4", "(30, 16)"});
  copy.set({{"quantization_config", {{"quant_method", "ebb"}, {"pattern", "1:4"}}}});
  expect_error([&] { io::open_folder(copy.path(), device::cpu, f32); },
               {"quantization_config", "\"2:4\"", "1:4"});
}

// There is no kernel for GPUs, and planning says so before anything is read.
TEST_F(PairFolder, PlansForAGpuAreRefused) {
  if (!built_with_cuda()) return;
  prune(golden_models / "gpt2");
  for (const DType dtype : {f32, bf16}) {
    const auto open = io::open_folder(packed(), device::cuda(0), dtype);
    EvalStep step(*open.module,
                  [&](const Batch& b) { return std::vector{open.lm->loss(b.x(), b.y())}; });
    const TensorType ids{{1, 8}, i32};
    expect_error(
        [&] {
          step.plan({ids, ids});
        },
        {"[pair_linear]", "no kernel", std::string(name(dtype)), "cuda"});
  }
}

}  // namespace
}  // namespace ebb::test
