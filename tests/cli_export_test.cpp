// `ebb export` as a user meets it. tests/onnx runs what it writes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command_line.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* small =
    " --workload gpt2 --layers 1 --width 12 --heads 3 --sequence 6 --vocabulary 40 --batch 2 "
    "--steps 2 --eval-batches 0 ";

TEST(CommandLineExport, ACheckpointGivesTheFileOfTheSavedModel) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  const Outcome trained = run("train" + std::string(small) + "--save " + at + "/hf --checkpoint " +
                              at + "/run --json > /dev/null");
  ASSERT_EQ(trained.code, 0) << trained.output;
  ASSERT_EQ(run("export --model " + at + "/hf --onnx " + at + "/a.onnx").code, 0);
  const Outcome exported =
      run("export --checkpoint " + at + "/run --onnx " + at + "/b.onnx --json");
  ASSERT_EQ(exported.code, 0) << exported.output;
  EXPECT_EQ(contents(folder / "a.onnx"), contents(folder / "b.onnx"));
  const auto json = nlohmann::json::parse(exported.output);
  EXPECT_EQ(json.at("model"), "gpt2");
  EXPECT_EQ(json.at("opset"), 18);
  EXPECT_EQ(json.at("file_bytes"), fs::file_size(folder / "b.onnx"));
  EXPECT_EQ(json.at("inputs").at(0).at("axes").at(0), "batch_size");
  EXPECT_FALSE(json.contains("external_file"));

  const Outcome outside = run("export --model " + at + "/hf --onnx " + at +
                              "/c.onnx --external-data --with-cache --opset 22 --json");
  ASSERT_EQ(outside.code, 0) << outside.output;
  const auto other = nlohmann::json::parse(outside.output);
  EXPECT_EQ(other.at("external_bytes"), fs::file_size(folder / "c.onnx.data"));
  EXPECT_EQ(other.at("opset"), 22);
  EXPECT_EQ(other.at("outputs").size(), 3u);
}

TEST(CommandLineExport, ModelsWithoutAFolderComeFromCheckpoints) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  const Outcome trained =
      run("train --workload mlp --hidden 8 --layers 2 --batch 4 --steps 1 --eval-batches 0 "
          "--checkpoint " +
          at + "/run --json > /dev/null");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const Outcome exported = run("export --checkpoint " + at + "/run --onnx " + at + "/m.onnx");
  EXPECT_EQ(exported.code, 0) << exported.output;
  EXPECT_NE(exported.output.find("mlp with float32 weights"), std::string::npos) << exported.output;
  EXPECT_NE(exported.output.find("output  logits float32 (batch_size, 10)"), std::string::npos)
      << exported.output;
  expect_failure("export --with-cache --checkpoint " + at + "/run --onnx " + at + "/n.onnx", 1,
                 "mlp does not");
}

TEST(CommandLineExport, Errors) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  expect_usage_error("export --onnx m.onnx", "--model DIR or --checkpoint DIR");
  expect_usage_error("export --model " + at, "--onnx");
  expect_usage_error("export --model " + at + " --checkpoint " + at + " --onnx m.onnx", "--model");
  expect_usage_error("export --model " + at + " --onnx m.onnx --opset 17", "--opset");
  expect_usage_error("export --model " + at + " --onnx m.onnx --opset 27", "--opset");
  expect_usage_error("export --model " + at + " --onnx m.onnx --compute fp8", "--compute");
  expect_failure("export --model " + at + " --onnx m.onnx", 1, "config.json");
  expect_failure("export --checkpoint " + at + " --onnx m.onnx", 1, "checkpoint.safetensors");
}

}  // namespace
}  // namespace ebb::test
