#include "io/hugging_face/folder_writer.h"

#include <fmt/core.h>

#include "ebb/error.h"

namespace ebb::io {
namespace {

std::vector<std::pair<std::string, TensorType>> tensors_of(const nn::ModuleBase& model,
                                                           const FolderForm& form) {
  std::vector<std::pair<std::string, TensorType>> tensors;
  std::set<std::string> fused;
  for (const nn::NamedVariable& p : model.parameters()) {
    TensorType type = p.variable.type();
    const auto part = form.packed ? std::nullopt : form.names.part(p.path);
    if (part) {
      if (!fused.insert(part->first).second) continue;
      type.shape[0] *= static_cast<std::int64_t>(form.names.fused->parts.size());
    }
    tensors.emplace_back(form.names.in_files(part ? part->first : p.path), type);
    for (const auto& [copy, original] : form.names.second_names)
      if (original == p.path) tensors.emplace_back(form.names.in_files(copy), type);
  }
  for (const nn::NamedVariable& b : model.buffers())
    tensors.emplace_back(form.names.in_files(b.path), b.variable.type());
  return tensors;
}

std::map<std::string, nn::NamedVariable> by_path(const nn::ModuleBase& model) {
  std::map<std::string, nn::NamedVariable> result;
  for (const auto& list : {model.parameters(), model.buffers()})
    for (const nn::NamedVariable& v : list) result.emplace(v.path, v);
  return result;
}

const std::filesystem::path& made(const std::filesystem::path& folder) {
  make_folder(folder);
  return folder;
}

}  // namespace

FolderWriter::FolderWriter(const nn::ModuleBase& model, const std::filesystem::path& folder)
    : folder_(made(folder)),
      form_(form_of(model, packed_form(model))),
      parameters_(by_path(model)),
      file_(folder / "model.safetensors", tensors_of(model, form_), {{"format", "pt"}}) {}

void FolderWriter::write(const std::string& parameter, std::span<const std::byte> bytes) {
  const nn::NamedVariable& own = form(parameter);
  if (static_cast<std::int64_t>(bytes.size()) != own.variable.type().bytes().count)
    throw ShapeError(fmt::format("\"{}\" has {} bytes, but {} came", parameter,
                                 own.variable.type().bytes().count, bytes.size()));
  written_.insert(parameter);
  const Names& names = form_.names;
  if (const auto part = form_.packed ? std::nullopt : names.part(parameter)) {
    const std::size_t parts = names.fused->parts.size(),
                      heads = static_cast<std::size_t>(names.fused->heads),
                      each = bytes.size() / heads;  // bytes of a head's rows
    for (std::size_t h = 0; h < heads; ++h)
      file_.write(names.in_files(part->first),
                  static_cast<std::int64_t>((h * parts + part->second) * each),
                  bytes.subspan(h * each, each));
    return;
  }
  file_.write(names.in_files(parameter), 0, bytes);
  for (const auto& [copy, original] : names.second_names)
    if (original == parameter) file_.write(names.in_files(copy), 0, bytes);
}

void FolderWriter::commit() {
  file_.commit();
  write_config(form_, folder_);
}

}  // namespace ebb::io
