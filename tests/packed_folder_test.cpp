// Folders whose linear layers are stored in few bits: written, read again, evaluated, exported.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/nn/adapt.h"
#include "ebb/onnx/export.h"
#include "io/hugging_face/packed.h"
#include "support/command_line.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

models::LlamaConfig small_llama(models::DecoderFamily family) {
  models::LlamaConfig c;
  c.vocabulary = 61, c.width = 32, c.hidden = 40, c.layers = 2, c.heads = 4, c.key_value_heads = 2,
  c.context = 24, c.family = family;
  if (family == models::DecoderFamily::gpt_neox) {
    c.key_value_heads = 4, c.rotary_size = 4;
    c.attention_bias = c.mlp_bias = c.layer_norms = c.parallel = true, c.gated = false;
  }
  return c;
}
models::Gpt2Config small_gpt2() {
  models::Gpt2Config c;
  c.vocabulary = 61, c.context = 24, c.layers = 2, c.heads = 4, c.width = 32;
  return c;
}

// Saves the model, packs it, and expects that the packed folder gives the same bits.
template <class Model, class Config>
void expect_kept(const Config& config, LowBits bits) {
  const TemporaryFolder folder;
  io::save(make<Model>(device::cpu, f32, config), folder / "plain");
  const auto packed = io::open_folder(folder / "plain", device::cpu, f32);
  nn::adapt(*packed.module, {.base = bits});
  packed.load();
  io::save_packed(*packed.module, folder / "packed");
  EXPECT_LT(fs::file_size(folder / "packed" / "model.safetensors"),
            fs::file_size(folder / "plain" / "model.safetensors") / 2);

  const auto again = io::open_folder(folder / "packed", device::cpu, f32);
  EXPECT_TRUE(nn::has_packed_weights(*again.module));
  again.load();
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 1, 4, 1, 5, 9, 2, 6}, {2, 4});
  EXPECT_EQ(eval(again.lm->logits(ids)).template to_vector<float>(),
            eval(packed.lm->logits(ids)).template to_vector<float>());
  if (bits != LowBits::nf4) {
    onnx::export_model(*packed.module, folder / "memory.onnx", {.opset = 21});
    onnx::export_folder(folder / "packed", folder / "folder.onnx", {.opset = 21});
    EXPECT_EQ(contents(folder / "folder.onnx"), contents(folder / "memory.onnx"));
  }
  // Saved as a plain model, it is a plain model again.
  again.save(folder / "plain again");
  const auto plain = io::open_folder(folder / "plain again", device::cpu, f32);
  EXPECT_FALSE(nn::has_packed_weights(*plain.module));
  plain.load();
  const std::vector<float> expected = eval(packed.lm->logits(ids)).template to_vector<float>(),
                           got = eval(plain.lm->logits(ids)).template to_vector<float>();
  // Products of unpacked weights are summed in another order.
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5);
}

TEST(PackedFolder, GivesTheSameBits) {
  for (const LowBits bits : {LowBits::int8, LowBits::int4, LowBits::nf4}) {
    expect_kept<models::Gpt2>(small_gpt2(), bits);
    expect_kept<models::Llama>(small_llama(models::DecoderFamily::llama), bits);
    expect_kept<models::Llama>(small_llama(models::DecoderFamily::gpt_neox), bits);
  }
}

TEST(PackedFolder, CommandLineWritesWhatGptqFound) {
  const TemporaryFolder folder;
  const std::string plain = (folder / "plain").string(), packed = (folder / "packed").string(),
                    tokens = (folder / "t.bin").string();
  io::save(make<models::Gpt2>(device::cpu, f32, small_gpt2()), plain);
  std::ofstream file(tokens, std::ios::binary);
  for (std::int32_t i = 0; i < 200; ++i) {
    const std::int32_t token = (i * i * 7 + i) % 61;
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  file.close();
  const auto loss = [&](const std::string& arguments) {
    const Outcome outcome = run("eval --tokens " + tokens + " --json --model " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    if (outcome.code != 0) return Json();
    return Json::parse(outcome.output.substr(outcome.output.find('{')))["loss"];
  };
  const Json first = loss(plain + " --base int4 --calibrate " + tokens + " --save " + packed);
  EXPECT_EQ(loss(packed), first);
  EXPECT_NE(loss(plain + " --base int4"), first);  // plain rounding

  const auto fails = [&](const std::string& arguments, const std::string& expected) {
    const Outcome outcome = run(arguments);
    EXPECT_NE(outcome.code, 0);
    EXPECT_NE(outcome.output.find(expected), std::string::npos) << outcome.output;
  };
  fails("eval --tokens " + tokens + " --base int8 --model " + packed, "already in int4");
  fails("eval --tokens " + tokens + " --base int4 --save " + plain + " --model " + plain,
        "another folder");
  fails("eval --tokens " + tokens + " --save " + packed + " --model " + plain, "--base");
  fails("prune --keep 0.5 --save " + plain + "2 --model " + packed, "already in few bits");
  const std::string onnx = "export --onnx " + (folder / "x.onnx").string() + " --model " + packed;
  fails(onnx + " --bits int8", "is stored in int4 already and cannot become int8");
  EXPECT_EQ(run(onnx + " --bits int4").code, 0);
  const std::string train =
      "train --steps 1 --sequence 8 --batch 1 --eval-batches 0 --tokens int32 --data " + tokens +
      " --model " + packed;
  fails(train, "adapters");
  const Outcome adapted = run(train + " --lora 2");
  EXPECT_EQ(adapted.code, 0) << adapted.output;
}

TEST(PackedFolder, OtherQuantisationIsRefused) {
  const TemporaryFolder folder;
  io::save(make<models::Gpt2>(device::cpu, f32, small_gpt2()), folder / "m");
  Json config = Json::parse(std::ifstream(folder / "m" / "config.json"));
  for (const Json& other :
       {Json{{"quant_method", "gptq"}, {"bits", 4}},
        Json{{"quant_method", "ebb"}, {"bits", "int3"}},
        Json{{"quant_method", "ebb"}, {"bits", "int4"}, {"more", 1}}, Json(7)}) {
    config["quantization_config"] = other;
    std::ofstream(folder / "m" / "config.json") << config;
    expect_error([&] { io::open_folder(folder / "m", device::cpu, f32); },
                 {"quantization_config", "ebb"});
  }
  // The config says that weights are packed, but they are not: they are packed when they are read.
  config["quantization_config"] = {{"quant_method", "ebb"}, {"bits", "int4"}};
  std::ofstream(folder / "m" / "config.json") << config;
  EXPECT_NO_THROW(io::open_folder(folder / "m", device::cpu, f32).load());
  expect_error([&] { io::save_packed(make<models::Gpt2>(device::cpu, f32, small_gpt2()), "x"); },
               {"no weight", "packed"});
}

}  // namespace
}  // namespace ebb::test
