// The file itself, byte by byte. tests/onnx checks what onnx and onnxruntime make of it.
#include "onnx/model_file.h"

#include <gtest/gtest.h>

#include "ebb/error.h"
#include "support/op_check.h"
#include "support/protobuf_reader.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::onnx {
namespace {

namespace fs = std::filesystem;
using test::ProtobufReader;

Initializer initializer(const std::string& name, const std::vector<float>& values, Kind kind) {
  return {name,
          {{static_cast<std::int64_t>(values.size())}, f32},
          [values](const Sink& sink) {
            // In two pieces, as weights come.
            const auto bytes = std::as_bytes(std::span(values));
            sink(bytes.first(4));
            sink(bytes.subspan(4));
          },
          kind};
}

Graph small_graph() {
  Graph graph;
  graph.name = "small";
  graph.inputs = {{"x", f32, {"batch_size", std::int64_t{3}}}};
  graph.outputs = {{"y", f32, {"batch_size", std::int64_t{3}}}};
  Node node;
  node.name = "a/Softmax", node.op = "Softmax", node.inputs = {"x"}, node.outputs = {"y"};
  node.attributes = {
      {"axis", std::int64_t{-1}}, {"alpha", 0.25f}, {"pads", std::vector<std::int64_t>{1, 2}}};
  graph.nodes = {node};
  graph.initializers = {initializer("first", {1, 2, 3}, Kind::weight),
                        initializer("shape", {4, 5}, Kind::constant),
                        initializer("second", {6, 7, 8, 9}, Kind::weight)};
  return graph;
}

std::string bytes_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct File {
  explicit File(const fs::path& path)
      : text(test::contents(path)), model(text), graph(model.text(7)) {}
  std::string text;
  ProtobufReader model;
  std::string graph;
};

TEST(OnnxModelFile, HoldsTheGraph) {
  const test::TemporaryFolder folder;
  const Written written =
      write_model(small_graph(), folder / "m.onnx", 21, ExternalData::when_needed);
  const File file(folder / "m.onnx");
  EXPECT_EQ(written.model.count, static_cast<std::int64_t>(file.text.size()));
  EXPECT_FALSE(written.external_file);
  EXPECT_EQ(file.model.one(1).value, 10u);  // the format's version
  EXPECT_EQ(file.model.text(2), "ebb");
  const ProtobufReader opset(file.model.one(8).bytes), graph(file.graph);
  EXPECT_EQ(opset.text(1), "");
  EXPECT_EQ(opset.one(2).value, 21u);
  EXPECT_EQ(graph.text(2), "small");

  const ProtobufReader node(graph.one(1).bytes);
  EXPECT_EQ(node.text(1), "x");
  EXPECT_EQ(node.text(2), "y");
  EXPECT_EQ(node.text(3), "a/Softmax");
  EXPECT_EQ(node.text(4), "Softmax");
  ASSERT_EQ(node.all(5).size(), 3u);
  const ProtobufReader axis(node.all(5)[0].bytes), alpha(node.all(5)[1].bytes),
      pads(node.all(5)[2].bytes);
  EXPECT_EQ(static_cast<std::int64_t>(axis.one(3).value), -1);
  EXPECT_EQ(axis.one(20).value, 2u);
  EXPECT_EQ(alpha.text(2), bytes_of({0.25f}));
  EXPECT_EQ(alpha.one(20).value, 1u);
  ASSERT_EQ(pads.all(8).size(), 2u);
  EXPECT_EQ(pads.all(8)[1].value, 2u);
  EXPECT_EQ(pads.one(20).value, 7u);

  const ProtobufReader input(graph.one(11).bytes),
      tensor(ProtobufReader(input.one(2).bytes).one(1).bytes);
  EXPECT_EQ(input.text(1), "x");
  EXPECT_EQ(tensor.one(1).value, 1u);
  const ProtobufReader shape(tensor.one(2).bytes);
  EXPECT_EQ(ProtobufReader(shape.all(1)[0].bytes).text(2), "batch_size");
  EXPECT_EQ(ProtobufReader(shape.all(1)[1].bytes).one(1).value, 3u);

  ASSERT_EQ(graph.all(5).size(), 3u);
  const ProtobufReader second(graph.all(5)[2].bytes);
  EXPECT_EQ(second.text(8), "second");
  EXPECT_EQ(second.one(1).value, 4u);
  EXPECT_EQ(second.text(9), bytes_of({6, 7, 8, 9}));
}

// The entries of external data, by their keys.
std::map<std::string, std::string> place_of(const ProtobufReader& tensor) {
  std::map<std::string, std::string> result;
  for (const auto& field : tensor.all(13)) {
    const ProtobufReader entry(field.bytes);
    result[entry.text(1)] = entry.text(2);
  }
  return result;
}

TEST(OnnxModelFile, KeepsWeightsOutsideFromTheLimitOn) {
  const test::TemporaryFolder folder;
  const fs::path path = folder / "m.onnx";
  const Bytes inside = write_model(small_graph(), path, 18, ExternalData::when_needed).model;
  EXPECT_FALSE(
      write_model(small_graph(), path, 18, ExternalData::when_needed, inside + 1_B).external_file);
  const Written written = write_model(small_graph(), path, 18, ExternalData::when_needed, inside);
  ASSERT_EQ(written.external_file, folder / "m.onnx.data");
  EXPECT_EQ(written.model.count, static_cast<std::int64_t>(fs::file_size(path)));
  EXPECT_EQ(written.external.count,
            static_cast<std::int64_t>(fs::file_size(folder / "m.onnx.data")));

  const File file(path);
  const ProtobufReader graph(file.graph);
  const std::string data = test::contents(folder / "m.onnx.data");
  int outside = 0;
  for (const auto& field : graph.all(5)) {
    const ProtobufReader tensor(field.bytes);
    if (tensor.text(8) == "shape") {  // readers need it to infer shapes
      EXPECT_EQ(tensor.text(9), bytes_of({4, 5}));
      continue;
    }
    ++outside;
    EXPECT_TRUE(tensor.all(9).empty());
    EXPECT_EQ(tensor.one(14).value, 1u);
    const auto place = place_of(tensor);
    EXPECT_EQ(place.at("location"), "m.onnx.data");
    const std::size_t offset = std::stoul(place.at("offset")),
                      length = std::stoul(place.at("length"));
    EXPECT_EQ(offset % 4096, 0u);
    EXPECT_EQ(data.substr(offset, length),
              tensor.text(8) == "first" ? bytes_of({1, 2, 3}) : bytes_of({6, 7, 8, 9}));
  }
  EXPECT_EQ(outside, 2);
  test::expect_error([&] { write_model(small_graph(), path, 18, ExternalData::no, inside); },
                     {"m.onnx", "a file of their own"});
}

TEST(OnnxModelFile, AFailureLeavesNoFile) {
  const test::TemporaryFolder folder;
  Graph graph = small_graph();
  graph.initializers[2].type.shape = {5};  // it gives 16 bytes
  for (const ExternalData external : {ExternalData::no, ExternalData::yes}) {
    test::expect_error([&] { write_model(graph, folder / "m.onnx", 18, external); },
                       {"\"second\"", "20", "16"});
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
  test::expect_error([&] { write_model(graph, folder / "none" / "m.onnx", 18, ExternalData::no); },
                     {"none"});
}

TEST(OnnxModelFile, VersionsOfTheFormat) {
  EXPECT_EQ(ir_version(18), 8);
  EXPECT_EQ(ir_version(20), 9);
  EXPECT_EQ(ir_version(22), 10);
  EXPECT_EQ(ir_version(23), 11);
  EXPECT_EQ(ir_version(24), 12);
  EXPECT_EQ(ir_version(26), 13);
}

}  // namespace
}  // namespace ebb::onnx
