// The golden model folders (tools/make_model_folders.py): their losses, and changed copies of them.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ebb/ebb.h"
#include "ebb/io/hugging_face.h"
#include "ebb/io/safetensors.h"
#include "support/temporary_folder.h"

namespace ebb::test {

inline const std::filesystem::path golden_models =
    std::filesystem::path(EBB_GOLDEN_FOLDER) / "models";

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

inline double golden_loss(const char* name) {
  return read_json(golden_models / "losses.json").at(name).get<double>();
}

// The two rows of twelve tokens for which the golden losses were computed.
inline Tensor tokens() {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 24; ++i) ids.push_back((7 * i * i + 3 * i) % 61);
  return Tensor::from(ids, {2, 12});
}

inline Tensor causal_loss_of(models::CausalLm& model) {
  return model.loss(slice(tokens(), 1, 0, 11), slice(tokens(), 1, 1, 12));
}
inline double causal_loss(models::CausalLm& model) { return causal_loss_of(model).item(); }

// The loss for labels 2 and 0; for tasks other than choosing one class, these labels are one-hot.
inline Tensor bert_loss_of(models::BertClassifier& model) {
  std::vector<std::uint8_t> seen(24, 1);
  for (std::size_t i = 12 + 9; i < 24; ++i) seen[i] = 0;
  const Tensor mask = cast(Tensor::from(seen, {2, 12}), b8);
  if (model.config().task.value_or(models::BertTask::one_of) == models::BertTask::one_of)
    return model.loss(tokens(), Tensor::from(std::vector<std::int64_t>{2, 0}, {2}), mask);
  return model.loss(tokens(), Tensor::from(std::vector<double>{0, 0, 1, 1, 0, 0}, {2, 3}), mask);
}
inline double bert_loss(models::BertClassifier& model) { return bert_loss_of(model).item(); }

inline double folder_loss(const std::filesystem::path& folder, DType dtype) {
  if (io::model_type(folder) == "bert")
    return bert_loss(*io::load_bert(folder, device::cpu, dtype));
  return causal_loss(*io::load_causal_lm(folder, device::cpu, dtype).lm);
}

// A copy of a golden folder that a test may change.
class FolderCopy {
 public:
  explicit FolderCopy(const std::string& model) : path_(folder_ / model) {
    std::filesystem::copy(golden_models / model, path_, std::filesystem::copy_options::recursive);
  }
  const std::filesystem::path& path() const { return path_; }

  FolderCopy& set(const nlohmann::json& fields) {
    nlohmann::json config = read_json(path_ / "config.json");
    config.update(fields);
    std::ofstream(path_ / "config.json") << config;
    return *this;
  }
  FolderCopy& remove(const char* field) {
    nlohmann::json config = read_json(path_ / "config.json");
    config.erase(field);
    std::ofstream(path_ / "config.json") << config;
    return *this;
  }

  using Tensors = std::map<std::string, Tensor>;
  Tensors tensors() const {
    const io::SafetensorsFile file(path_ / "model.safetensors");
    Tensors result;
    for (const auto& [name, entry] : file.entries()) {
      const Variable value(zeros(entry.type.shape, entry.type.dtype), Category::weights);
      file.load(name, value);
      result.emplace(name, value);
    }
    return result;
  }
  FolderCopy& change_tensors(const std::function<void(Tensors&)>& change) {
    Tensors all = tensors();
    change(all);
    write("model.safetensors", all);
    return *this;
  }
  void write(const std::string& file, const Tensors& tensors) const {
    std::vector<io::NamedTensor> list;
    for (const auto& [name, tensor] : tensors) {
      const Variable value(tensor, Category::weights);
      if (!value.has_value()) value.materialise();
      list.push_back({name, value});
    }
    io::write_safetensors(path_ / file, list, {{"format", "pt"}});
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_;
};

}  // namespace ebb::test
