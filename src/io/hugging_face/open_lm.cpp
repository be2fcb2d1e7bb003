#include "ebb/io/open_lm.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "ebb/error.h"
#include "io/json_file.h"

namespace ebb::io {
namespace {

// False if the file does not say.
bool read_end_ids(const JsonFile& file, std::vector<std::int32_t>& ids) {
  const auto found = file.json().find("eos_token_id");
  if (found == file.json().end() || found->is_null()) return false;
  const nlohmann::json all = found->is_array() ? *found : nlohmann::json::array({*found});
  for (const nlohmann::json& id : all) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<std::int32_t>::max())
      file.fail("\"eos_token_id\" must be an id or a list of ids");
    ids.push_back(id.get<std::int32_t>());
  }
  return true;
}

}  // namespace

OpenLm open_causal_lm(const std::filesystem::path& path, Device device, DType dtype) {
  ModelFolder folder = open_folder(path, device, dtype);
  if (!folder.lm)
    throw FileError(fmt::format("{}: a {} model does not predict the next token", path.string(),
                                model_type(path)));
  return {{std::move(folder.module), folder.lm}, std::move(folder.load)};
}

std::vector<std::int32_t> end_ids(const std::filesystem::path& folder) {
  std::vector<std::int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"})
    if (std::filesystem::exists(folder / name) && read_end_ids(JsonFile(folder / name), ids)) break;
  return ids;
}

std::vector<std::string> unused_generation_settings(const std::filesystem::path& folder) {
  // Each setting with the value that changes nothing.
  const std::pair<const char*, nlohmann::json> settings[] = {{"do_sample", false},
                                                             {"num_beams", 1},
                                                             {"penalty_alpha", 0},
                                                             {"repetition_penalty", 1},
                                                             {"encoder_repetition_penalty", 1},
                                                             {"no_repeat_ngram_size", 0},
                                                             {"min_length", 0},
                                                             {"min_new_tokens", 0},
                                                             {"min_p", 0},
                                                             {"bad_words_ids", nullptr},
                                                             {"sequence_bias", nullptr},
                                                             {"suppress_tokens", nullptr},
                                                             {"begin_suppress_tokens", nullptr},
                                                             {"forced_bos_token_id", nullptr},
                                                             {"forced_eos_token_id", nullptr},
                                                             {"guidance_scale", 1}};
  const bool own = std::filesystem::exists(folder / "generation_config.json");
  const JsonFile file(folder / (own ? "generation_config.json" : "config.json"));
  std::vector<std::string> names;
  for (const auto& [name, nothing] : settings) {
    const auto found = file.json().find(name);
    if (found != file.json().end() && !found->is_null() && *found != nothing)
      names.emplace_back(name);
  }
  return names;
}

}  // namespace ebb::io
