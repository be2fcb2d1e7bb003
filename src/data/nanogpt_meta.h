// meta.pkl, which nanoGPT writes beside train.bin and val.bin where each token is a character: a
// dictionary of "vocab_size", "itos" (the character of each token) and "stoi" (the other way).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ebb::data {

struct NanoGptMeta {
  std::int64_t vocabulary = 0;
  std::vector<std::string> characters;  // of each token, as UTF-8; empty if the file has none
};
// An error if the three contradict each other, or if there are other keys.
NanoGptMeta read_nanogpt_meta(const std::filesystem::path& path);

}  // namespace ebb::data
