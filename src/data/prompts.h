// Files of prompts: one text per line, or in files that end with .jsonl one JSON object per line:
// {"prompt": "text"} or {"ids": [5, 17, 2]}. Lines end with \n or \r\n.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace ebb::data {

using Prompt = std::variant<std::string, std::vector<std::int32_t>>;  // text or ids
std::vector<Prompt> read_prompts(const std::filesystem::path& path);

}  // namespace ebb::data
