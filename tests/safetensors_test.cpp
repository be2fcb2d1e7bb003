// Hostile and broken safetensors files: each gives one error that names the file and what is wrong.
#include "ebb/io/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "ebb/ebb.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

std::string framed(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}
std::string framed(const std::string& header, const std::string& data) {
  return framed(header, data, header.size());
}

void expect_bad(const std::string& bytes, const std::vector<std::string>& parts) {
  const TemporaryFolder folder;
  std::ofstream(folder / "bad.safetensors", std::ios::binary) << bytes;
  std::vector<std::string> all{"bad.safetensors"};
  all.insert(all.end(), parts.begin(), parts.end());
  expect_error([&] { io::SafetensorsFile file(folder / "bad.safetensors"); }, all);
}

TEST(Safetensors, RoundTripOfEveryDtype) {
  const TemporaryFolder folder;
  std::vector<io::NamedTensor> tensors;
  for (DType dtype : all_dtypes)
    tensors.push_back({std::string(name(dtype)), eval(cast(arange(6, i64), dtype))});
  tensors.push_back({"scalar", eval(full({}, 2.5))});
  tensors.push_back({"empty", eval(zeros({0, 3}))});
  io::write_safetensors(folder / "x.safetensors", tensors, {{"a", "b"}});
  const io::SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.metadata().at("a"), "b");
  for (const io::NamedTensor& t : tensors) {
    ASSERT_EQ(file.at(t.name).type, t.tensor.type()) << t.name;
    EXPECT_EQ(values_of(Tensor::from_bytes(file.bytes(t.name), t.tensor.type())),
              values_of(t.tensor))
        << t.name;
  }
}

TEST(Safetensors, LoadsIntoVariablesAtTheirPrecision) {
  const TemporaryFolder folder;
  io::write_safetensors(folder / "x.safetensors",
                        {{"x", eval(full({3}, 1.5))}, {"i", eval(zeros({3}, i64))}});
  const io::SafetensorsFile file(folder / "x.safetensors");
  Variable half(zeros({3}, bf16)), wrong(zeros({4}));
  file.load("x", half);
  EXPECT_EQ(values_of(half), (std::vector<double>{1.5, 1.5, 1.5}));
  expect_error([&] { file.load("x", wrong); }, {"x.safetensors", "(3,)", "(4,)"});
  expect_error([&] { file.load("i", half); }, {"x.safetensors", "int64", "bfloat16"});
  expect_error([&] { file.load("y", half); }, {"x.safetensors", "no tensor \"y\""});
}

TEST(Safetensors, BrokenFiles) {
  const std::string ok = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data(8, 'd');
  const auto entry = [](const std::string& fields) { return R"({"x":{)" + fields + "}}"; };
  expect_bad("", {"8 bytes", "0 bytes"});
  expect_bad("1234567", {"7 bytes"});
  expect_bad(framed("", "", 5), {"5 bytes long"});
  expect_bad(framed("{}", "", ~std::uint64_t{0}), {"18446744073709551615"});
  expect_bad(framed("{}", "", 200'000'000), {"200000000"});
  expect_bad(framed("nonsense", ""), {"not JSON"});
  expect_bad(framed("[1]", ""), {"JSON object"});
  expect_bad(framed(ok, "short"), {"[0, 8)", "5 bytes"});
  expect_bad(framed(ok, data + "more"), {"4 bytes", "no tensor"});
  expect_bad(framed(R"({"x":3})", ""), {"\"x\"", "dtype, shape and data_offsets"});
  expect_bad(framed(entry(R"("dtype":"F99","shape":[2],"data_offsets":[0,8])"), data), {"F99"});
  expect_bad(framed(entry(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"), data),
             {"dtype must be a string"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), data), {"-2"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), data), {"2.5"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), data),
             {"shape must be a list"});
  expect_bad(
      framed(entry(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"), data),
      {"at most 8"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), data),
             {"12 bytes", "8"});
  expect_bad(
      framed(entry(R"("dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,8])"), data),
      {"too many"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), data), {"[8, 0)"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,-8])"), data),
             {"data_offsets"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), data),
             {"data_offsets"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), data + "more"),
             {"gap or an overlap"});
  expect_bad(
      framed(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
          data + "more"),
      {"\"b\"", "gap or an overlap"});
  expect_bad(
      framed(
          R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
          data),
      {"\"x\" twice"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"scale":2)"), data),
             {"\"x\"", "dtype, shape and data_offsets"});
  expect_bad(framed(entry(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"), data),
             {"\"shape\" of \"x\" twice"});
  std::string many = "0";
  for (int i = 0; i < 100000; ++i) many += ",0";
  expect_bad(framed(entry(R"("dtype":"F32","shape":[)" + many + R"(],"data_offsets":[0,8])"), data),
             {"at most 8"});
  expect_bad(framed(R"({"__metadata__":{},"__metadata__":{}})", ""), {"__metadata__", "twice"});
  expect_bad(framed(R"({"__metadata__":3})", ""), {"__metadata__"});
  expect_bad(framed(R"({"__metadata__":{"a":3}})", ""), {"\"a\"", "string"});
  expect_bad(framed(std::string(20000, '['), ""), {"bad.safetensors"});
  expect_error([] { io::SafetensorsFile file("/"); }, {"/", "regular file"});
}

// Any damage to a good file is either harmless to its structure or an error; never a crash.
TEST(Safetensors, SurvivesRandomDamage) {
  const TemporaryFolder folder;
  io::write_safetensors(folder / "good.safetensors",
                        {{"a", eval(zeros({3, 4}))}, {"b", eval(ones({5}, i64))}}, {{"k", "v"}});
  std::ifstream in(folder / "good.safetensors", std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (int k = 0; k < 1 + round % 4; ++k)
      bad[random() % bad.size()] = static_cast<char>(random());
    if (round % 7 == 0) bad.resize(random() % bad.size());
    std::ofstream(folder / "bad.safetensors", std::ios::binary) << bad;
    try {
      const io::SafetensorsFile file(folder / "bad.safetensors");
      for (const auto& [name, entry] : file.entries())
        EXPECT_EQ(static_cast<std::int64_t>(file.bytes(name).size()), entry.type.bytes().count);
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find("bad.safetensors"), std::string::npos);
    }
  }
}

TEST(Safetensors, WritingErrors) {
  const TemporaryFolder folder;
  expect_error(
      [&] {
        io::write_safetensors(folder / "x", {{"x", zeros({2})}});
      },
      {"\"x\"", "no value"});
  expect_error(
      [&] {
        io::write_safetensors(folder / "x", {{"x", eval(zeros({2}))}, {"x", eval(zeros({2}))}});
      },
      {"two tensors", "\"x\""});
}

}  // namespace
}  // namespace ebb::test
