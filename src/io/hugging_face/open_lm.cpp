#include "ebb/io/open_lm.h"

#include <fmt/core.h>

#include <limits>

#include "ebb/error.h"
#include "io/hugging_face/open.h"
#include "io/json_file.h"

namespace ebb::io {
namespace {

template <class Model>
OpenLm opened(OpenFolder<Model> folder) {
  models::CausalLm* lm = folder.model.get();
  const auto weights = std::make_shared<FolderWeights>(std::move(folder.weights));
  nn::ModuleBase* module = folder.model.get();
  return {{std::move(folder.model), lm}, [weights, module] { weights->load(*module); }};
}

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

OpenLm open_causal_lm(const std::filesystem::path& folder, Device device, DType dtype) {
  const std::string type = model_type(folder);
  if (type == "gpt2") return opened(open_gpt2(folder, device, dtype));
  if (type == "llama") return opened(open_llama(folder, device, dtype));
  throw FileError(fmt::format("{}: a {} model does not predict the next token; gpt2 and llama do",
                              folder.string(), type));
}

std::vector<std::int32_t> end_ids(const std::filesystem::path& folder) {
  std::vector<std::int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"})
    if (std::filesystem::exists(folder / name) && read_end_ids(JsonFile(folder / name), ids)) break;
  return ids;
}

}  // namespace ebb::io
