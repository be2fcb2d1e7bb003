#include "ebb/io/open_lm.h"

#include <fmt/core.h>

#include <limits>
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

}  // namespace ebb::io
