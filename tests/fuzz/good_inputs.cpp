// jpeglib.h needs the types of stdio.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on
#include <png.h>
#include <zlib.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "ebb/io/checkpoint.h"
#include "ebb/io/device_file.h"
#include "ebb/io/plan_file.h"
#include "ebb/io/safetensors.h"
#include "ebb/workloads/train_spec.h"
#include "fuzz/small_models.h"
#include "fuzz/small_records.h"
#include "support/nanogpt_meta.h"

namespace ebb::fuzz {
namespace {

using namespace std::string_literals;

std::string zipped(const std::string& bytes, const Folder& folder) {
  const gzFile file = gzopen((folder / "zipped").c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return file_bytes(folder / "zipped");
}

// Two files in the form in which the reader of idx files takes them.
std::string joined(const std::string& labels, const std::string& images) {
  return static_cast<char>(labels.size()) + labels + images;
}

std::string safetensors(const Folder& folder) {
  std::vector<io::NamedTensor> tensors;
  for (DType dtype : all_dtypes)
    tensors.push_back({std::string(name(dtype)), eval(cast(arange(3, i64), dtype))});
  tensors.push_back({"scalar", eval(full({}, 2.5))});
  tensors.push_back({"empty", eval(zeros({0, 3}))});
  io::write_safetensors(folder / "x", tensors, {{"format", "pt"}});
  return file_bytes(folder / "x");
}

std::string checkpoint(const Folder& folder, int steps) {
  SmallRun run;
  for (int i = 0; i < steps; ++i) run.step({{eval(ones({2, 4})), eval(zeros({2}, i64))}});
  io::save_checkpoint(folder / "x", run.model, run.step, {{"place", "here"}});
  return file_bytes(folder / "x");
}

std::string engine_checkpoint(const Folder& folder, int steps) {
  SmallEngine run;
  for (int i = 0; i < steps; ++i) run.engine.train_step();
  run.engine.save(folder / "x");
  return file_bytes(folder / "x");
}

std::string plan(const Folder& folder) {
  const Graph graph = small_graph();
  io::save_plan(plan_program(graph), graph, folder / "x");
  return file_bytes(folder / "x");
}

// The index of the folder of small_shards.
std::string shards_index(const Folder& folder) {
  const Folder model = small_shards(folder);
  nlohmann::json map;
  for (const char* name : {"one.safetensors", "two.safetensors"}) {
    const io::SafetensorsFile file(model / name);
    for (const auto& [tensor, entry] : file.entries()) map[tensor] = name;
  }
  return nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump();
}

// One of each kind that the reader knows.
std::vector<std::string> records() {
  workloads::TrainSpec plain, levels;
  plain.task.common.name = "lm";
  levels.task.common.name = "reweight";
  for (const std::string& name : workloads::level_names("reweight")) levels.task.levels[name];
  const auto with = [](char kind, std::string_view text) { return kind + std::string(text); };
  return {with('g', small_generation),
          with('r', small_run),
          with('a', small_results),
          with('t', small_timelines),
          with('d', R"({"items":"8 items","file a.txt":"3 bytes, all with the hash 0"})"),
          with('s', workloads::to_json(plain)),
          with('s', workloads::to_json(levels))};
}

// A PNG and a JPEG file of 3 × 2 pixels.
std::vector<std::string> pictures() {
  const std::vector<unsigned char> rgb(18, 100);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = 3, image.height = 2, image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 1 << 12;
  std::string png(size, '\0');
  png_image_write_to_memory(&image, png.data(), &size, 0, rgb.data(), 0, nullptr);
  png.resize(size);
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&info, &bytes, &count);
  info.image_width = 3, info.image_height = 2;
  info.input_components = 3, info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<unsigned char> line(rgb.begin(), rgb.begin() + 9);
  JSAMPROW row = line.data();
  while (info.next_scanline < info.image_height) jpeg_write_scanlines(&info, &row, 1);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string jpeg(reinterpret_cast<char*>(bytes), count);
  std::free(bytes);
  return {png, jpeg};
}

// One tokenizer for each model, together covering many of the other parts.
std::vector<std::string> tokenizers() {
  return {
      R"json({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,
      "content":"<s>","single_word":true,"lstrip":true,"rstrip":true,"normalized":false,
      "special":true}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence",
      "pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}|\\s+(?!\\S)"},
      "behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":true,
      "trim_offsets":true,"use_regex":true}]},"post_processor":{"type":"TemplateProcessing",
      "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
      "pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}},
      "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","dropout":null,"unk_token":null,
      "ignore_merges":true,"vocab":{"c":0,"l":1,"cl":2},"merges":[["c","l"]]}})json",
      R"json({"added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend",
      "prepend":"_"},{"type":"Replace","pattern":{"String":" "},"content":"_"},{"type":"Strip"},
      {"type":"NFKD"}]},"pre_tokenizer":null,"decoder":{"type":"Sequence","decoders":[{"type":
      "ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
      "model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,
      "vocab":{"?":0,"o":1,"<0x0A>":2,"_":3,"_o":4},"merges":["_ o"]}})json",
      R"json({"normalizer":{"type":"BertNormalizer","strip_accents":null},"pre_tokenizer":{"type":
      "BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["]",1],"cls":["[",0]},
      "decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece",
      "unk_token":"[","max_input_chars_per_word":9,
      "vocab":{"[":0,"]":1,"it":2,"##f":3,"ca":4}}})json",
      R"json({"normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABhAA=="},
      "pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true},
      "decoder":{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true},
      "model":{"type":"Unigram","unk_id":0,"byte_fallback":true,
      "vocab":[["?",0],["_I",-1.5],["c",-2]]}})json"};
}

template <class Model, class Config>
std::string config_json(const Folder& folder, const Config& config) {
  return file_bytes(small_folder<Model>(folder, config) / "config.json");
}

}  // namespace

std::map<std::string, std::vector<std::string>> good_inputs(const Folder& folder) {
  const std::string labels = "\0\0\x08\x01\0\0\0\x02\x03\x09"s,
                    images = "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02pixl"s;
  return {
      {"safetensors", {safetensors(folder)}},
      {"checkpoint", {checkpoint(folder, 0), checkpoint(folder, 1)}},
      {"multilevel_checkpoint", {engine_checkpoint(folder, 0), engine_checkpoint(folder, 3)}},
      {"gpt2_config", {config_json<models::Gpt2>(folder / "gpt2_good", small_gpt2)}},
      {"llama_config", {config_json<models::Llama>(folder / "llama_good", small_llama)}},
      {"bert_config", {config_json<models::BertClassifier>(folder / "bert_good", small_bert)}},
      {"adapter_config",
       {file_bytes(small_adapter(folder / "adapter_good") / "adapter_config.json")}},
      {"adapter_weights",
       {file_bytes(small_adapter(folder / "adapter_good") / "adapter_model.safetensors")}},
      {"index", {shards_index(folder / "shards_good")}},
      {"records", records()},
      {"packed_weights", {file_bytes(small_packed(folder / "packed_good") / "model.safetensors")}},
      {"pair_weights", {file_bytes(small_pairs(folder / "pairs_good") / "model.safetensors")}},
      {"device_file", {io::describe_device(Rates{})}},
      {"tuning", {tuning_text({"A GPU", {{"products", {"12", {{"2x3", {3, 1_MiB, 0.25}}}}}}})}},
      {"plan", {plan(folder)}},
      {"toml",
       {"a.'b' = [0x1F, -2.5e3, true, {c = \"\\u00e9\\n\"}] # x\n[t.u]\nv = \"\"\"\n\\\n "
        "w\"\"\"\n"}},
      {"cifar", {"\x03"s + std::string(3072, 'p')}},
      {"idx", {joined(labels, images)}},
      {"idx_gzip", {joined(zipped(labels, folder), zipped(images, folder))}},
      {"labelled_csv", {"label,title,text\n1,\"a \"\"b\"\"\",c\r\n10,,\"d\ne\"\n"}},
      {"documents", {"{\"text\":\"a\"}\n\n{\"prompt\":\"\\u00e9\",\"answer\":\"b\",\"from\":1}\n"}},
      {"labelled_jsonl", {"{\"text\":\"a\",\"label\":0}\n\n{\"label\":9,\"text\":\"\\u00e9\"}\n"}},
      {"prompts", {"{\"prompt\":\"a b\"}\r\n{\"ids\":[5,0,17]}\n"}},
      {"words", {"a b a\nc d e f g h i a\n\n \tend"}},
      {"tokens", {"\0\x01\x02"s, "\x01\x01\0\x02\0"s, "\x02\x01\0\0\0\xe7\x03\0\0"s}},
      {"nanogpt_meta", {test::nanogpt_meta(2), test::nanogpt_meta(4)}},
      {"tokenizer", tokenizers()},
      {"picture", pictures()},
      {"run_log",
       {"{\"step\":1,\"tag\":\"loss\",\"value\":2.5}\n{\"step\":2,\"tag\":\"loss\",\"value\":null,"
        "\"note\":\"nan\"}\n{\"step\":2,\"tag\":\"sample\",\"text\":\"x\"}\n{\"step\":3"}},
  };
}

}  // namespace ebb::fuzz
