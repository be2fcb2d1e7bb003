// Every reader of files that others may have written, as a function of the file's bytes. Each is a
// libFuzzer target (tools/fuzz.py), and each is run over its committed inputs in
// tests/corpus_test.cpp. A reader may throw errors of ebb/error.h and nothing else; it must not
// hang or take memory out of proportion to its input.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// clang-format off
#define EBB_READERS(X)                                                     \
  X(safetensors) X(checkpoint) X(multilevel_checkpoint)                    \
  X(gpt2_config) X(llama_config) X(bert_config) X(index) X(packed_weights) X(pair_weights) \
  X(adapter_config) X(adapter_weights) X(records)                          \
  X(device_file) X(tuning) X(plan) X(toml)                                 \
  X(cifar) X(idx) X(idx_gzip) X(labelled_csv) X(labelled_jsonl) X(documents) X(words) X(tokens) X(nanogpt_meta) \
  X(tokenizer) X(prompts) X(picture) X(run_log)
// clang-format on

namespace ebb::fuzz {

// `folder` is for the reader's files and holds what an earlier call left there.
using Folder = std::filesystem::path;
#define EBB_DECLARE(name) void read_##name(std::string_view bytes, const Folder& folder);
EBB_READERS(EBB_DECLARE)
#undef EBB_DECLARE

struct Reader {
  const char* name;
  void (*read)(std::string_view bytes, const Folder& folder);
};
#define EBB_ROW(name) {#name, read_##name},
inline constexpr Reader readers[] = {EBB_READERS(EBB_ROW)};
#undef EBB_ROW

std::filesystem::path write_file(const Folder& folder, const char* name, std::string_view bytes);
std::string file_bytes(const std::filesystem::path& path);

// Inputs that each reader accepts, written by the library itself where it has a writer: a fuzzer
// starts from them.
std::map<std::string, std::vector<std::string>> good_inputs(const Folder& folder);

}  // namespace ebb::fuzz
