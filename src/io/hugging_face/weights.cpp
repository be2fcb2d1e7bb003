#include "io/hugging_face/weights.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/json.h"
#include "ebb/error.h"
#include "ebb/nn/adapt.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "io/hugging_face/load_packed.h"
#include "io/hugging_face/load_pairs.h"
#include "io/json_file.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;

// An index may name files only without a folder, so that no path leaves the model's folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

void replace(std::string& name, const std::string& from, const std::string& to) {
  if (from.front() != '.') {
    if (name.starts_with(from)) name.replace(0, from.size(), to);
  } else if (const std::size_t at = name.find(from); at != std::string::npos) {
    name.replace(at, from.size(), to);
  }
}

}  // namespace

std::string Names::here(std::string name) const {
  for (const auto& [file, own] : spelled) replace(name, file, own);
  return name;
}

std::string Names::in_files(std::string parameter) const {
  for (auto row = spelled.rbegin(); row != spelled.rend(); ++row)
    replace(parameter, row->second, row->first);
  return parameter;
}

std::optional<std::pair<std::string, std::size_t>> Names::part(const std::string& parameter) const {
  if (!fused) return {};
  for (std::size_t i = 0; i < fused->parts.size(); ++i) {
    const std::string own = "." + fused->parts[i] + ".";
    // The rest is "weight" or "bias"; an adapter's parameters have longer paths and are in no such
    // file.
    if (const std::size_t at = parameter.find(own);
        at != std::string::npos && parameter.find('.', at + own.size()) == std::string::npos)
      return {{std::string(parameter).replace(at, own.size(), "." + fused->whole + "."), i}};
  }
  return {};
}

std::vector<NamedTensor> file_tensors(const nn::ModuleBase& model, const Names& names) {
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::vector<ebb::Tensor>> fused;  // the parts of each
  for (const nn::NamedVariable& p : model.parameters())
    if (!p.variable.has_value()) p.variable.materialise();
  for (const nn::PlainParameter& p : nn::merged_parameters(model)) {
    if (const auto part = names.part(p.path)) {
      std::vector<ebb::Tensor>& parts = fused[part->first];
      parts.resize(names.fused->parts.size());
      parts[part->second] = p.value;
    } else {
      tensors.push_back({names.in_files(p.path), p.value});
    }
  }
  for (const auto& [name, parts] : fused) {
    const Shape rows = parts.front().shape();
    Shape whole = rows;
    whole[0] *= static_cast<std::int64_t>(parts.size());
    std::vector<ebb::Tensor> heads;  // each (heads, 1, rows of a head, ...)
    for (const ebb::Tensor& part : parts) {
      Shape split = rows;
      split[0] = rows[0] / names.fused->heads;
      split.insert(0, 1), split.insert(0, names.fused->heads);
      heads.push_back(reshape(part, split));
    }
    tensors.push_back({names.in_files(name), eval(reshape(concat(heads, 1), whole))});
  }
  return tensors;
}

FolderWeights::FolderWeights(const fs::path& folder, Names names) : names_(std::move(names)) {
  const fs::path single = folder / "model.safetensors",
                 index = folder / "model.safetensors.index.json";
  path_ = single;
  if (fs::exists(single))
    files_.push_back(std::make_unique<SafetensorsFile>(single));
  else if (fs::exists(index))
    add_index(folder, index);
  else
    return;

  const auto prefixed = [&](const auto& file) {
    return std::any_of(file->entries().begin(), file->entries().end(),
                       [&](const auto& e) { return e.first.starts_with(names_.prefix); });
  };
  const bool bare = std::none_of(files_.begin(), files_.end(), prefixed);
  for (const auto& file : files_)
    for (const auto& [stored, entry] : file->entries()) {
      const std::string full = whole_name(stored, bare), own = names_.here(full);
      // A parameter has one name in files. If that is not its own name, the own name must not
      // occur: "classifier.weight" of RoBERTa belongs to a head for tokens, not to the parameter of
      // that name.
      if (names_.in_files(own) != full) belongs_nowhere(*file, stored);
      const auto [place, added] = tensors_.try_emplace(own, Tensor{file.get(), stored});
      if (!added)
        throw FileError(
            fmt::format("{}: tensor \"{}\" is also in {} as \"{}\"", file->path().string(), stored,
                        place->second.file->path().filename().string(), place->second.stored));
    }
}

void FolderWeights::add_index(const fs::path& folder, const fs::path& index) {
  path_ = index;
  const JsonFile json(index);
  for (const auto& [field, value] : json.json().items())
    if (field != "metadata" && field != "weight_map")
      json.fail(fmt::format("the field \"{}\" is not one of an index: metadata and weight_map are",
                            field));
  if (const auto found = json.json().find("metadata");
      found != json.json().end() && !found->is_object())
    json.fail(fmt::format("\"metadata\" must be an object, but is {}", json_excerpt(*found)));
  const auto map = json.json().find("weight_map");
  if (map == json.json().end() || !map->is_object() || map->empty())
    json.fail("\"weight_map\" must be an object that gives each tensor's file");
  std::map<std::string, std::set<std::string>> listed;  // the tensors of each file
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>()))
      json.fail(fmt::format(
          "tensor \"{}\" must be given the name of a file in this folder, but is given {}", name,
          json_excerpt(file)));
    listed[file.get<std::string>()].insert(name);
  }
  for (const auto& [name, tensors] : listed) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder / name));
    for (const std::string& tensor : tensors)
      if (!files_.back()->entries().contains(tensor))
        json.fail(fmt::format("tensor \"{}\" should be in {}, but is not there", tensor, name));
    for (const auto& [tensor, entry] : files_.back()->entries())
      if (!tensors.contains(tensor))
        json.fail(fmt::format("{} has a tensor \"{}\" that the index {}", name, tensor,
                              map->contains(tensor) ? "gives to another file" : "does not list"));
  }
}

std::string FolderWeights::whole_name(std::string name, bool bare) const {
  const auto replace_end = [&](std::string_view from, std::string_view to) {
    if (name.ends_with(from)) name.replace(name.size() - from.size(), from.size(), to);
  };
  if (names_.old_norms) {
    replace_end("LayerNorm.gamma", "LayerNorm.weight");
    replace_end("LayerNorm.beta", "LayerNorm.bias");
  }
  const bool head = std::any_of(names_.heads.begin(), names_.heads.end(),
                                [&](const std::string& h) { return name.starts_with(h + "."); });
  return bare && !head ? names_.prefix + name : name;
}

void FolderWeights::belongs_nowhere(const SafetensorsFile& file, const std::string& stored) {
  throw FileError(fmt::format("{}: tensor \"{}\" belongs to no part of the model",
                              file.path().string(), stored));
}

void FolderWeights::missing(const std::string& name) const {
  const auto next = tensors_.lower_bound(name);
  throw FileError(fmt::format(
      "{}: there is no tensor \"{}\" among its {}{}", path_.string(), names_.in_files(name),
      tensors_.size(),
      next == tensors_.end() ? ""
                             : fmt::format("; the next by name is \"{}\"", next->second.stored)));
}

const SafetensorsFile::Entry& FolderWeights::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) missing(name);
  return found->second.file->at(found->second.stored);
}

bool FolderWeights::equal(const std::string& first, const std::string& second) const {
  if (at(first).type != at(second).type) return false;
  const Tensor &a = tensors_.at(first), &b = tensors_.at(second);
  bool same = true;
  std::int64_t seen = 0;
  std::vector<std::byte> other;
  b.file->each_piece(b.stored, [&](std::span<const std::byte> piece) {
    if (!same) return;
    other.resize(piece.size());
    a.file->read(a.stored, seen, other);
    same = std::equal(piece.begin(), piece.end(), other.begin());
    seen += static_cast<std::int64_t>(piece.size());
  });
  return same;
}

void FolderWeights::rename(const std::string& from, const std::string& to) {
  auto node = tensors_.extract(from);
  if (node.empty()) return;
  node.key() = to;
  tensors_.insert(std::move(node));
}

bool FolderWeights::is_packed_here(const nn::NamedVariable& p) const {
  const auto found = tensors_.find(p.path);
  return p.packed && found != tensors_.end() &&
         found->second.file->at(found->second.stored).type == p.variable.type();
}

bool FolderWeights::is_whole(const nn::NamedVariable& p) const {
  const auto found = tensors_.find(p.path);
  return found != tensors_.end() && !tensors_.contains(positions_path(p.path)) &&
         found->second.file->at(found->second.stored).type.shape == p.shape();
}

std::string FolderWeights::in_file(const Tensor& tensor) {
  return fmt::format("{}: tensor \"{}\"", tensor.file->path().string(), tensor.stored);
}

void FolderWeights::check_pairs(const nn::NamedVariable& p) const {
  const auto values = tensors_.find(p.path);
  if (values == tensors_.end()) missing(p.path);
  values->second.file->require_loadable(values->second.stored, p.variable.type());
  const std::string path = positions_path(p.path);
  const auto positions = tensors_.find(path);
  if (positions == tensors_.end())
    throw FileError(
        fmt::format("{} has two of every four weights, but there is no tensor \"{}\" that says "
                    "which they are",
                    in_file(values->second), names_.in_files(path)));
  const SafetensorsFile& file = *positions->second.file;
  if (const TensorType& found = file.at(positions->second.stored).type,
      &expected = p.pairs->positions.type();
      found != expected)
    throw FileError(fmt::format("{} must be {}, but is {}", in_file(positions->second),
                                to_string(expected), to_string(found)));
}

bool FolderWeights::starts(const std::string& parameter) const {
  return std::any_of(names_.may_start.begin(), names_.may_start.end(), [&](const std::string& m) {
    const std::string first = m + ".";
    const auto any = tensors_.lower_bound(first);
    return parameter.starts_with(first) &&
           (any == tensors_.end() || !any->first.starts_with(first));
  });
}

void FolderWeights::check(const nn::ModuleBase& model, models::Origin& origin) const {
  if (absent()) return;
  std::set<std::string> wanted;
  for (const nn::NamedVariable& p : model.parameters()) {
    if (is_packed_here(p)) {
      wanted.insert(p.path);
      continue;
    }
    if (const auto part = names_.part(p.path); part && !tensors_.contains(p.path)) {
      const auto found = tensors_.find(part->first);
      if (found == tensors_.end()) missing(part->first);
      TensorType whole{p.shape(), p.packed ? model.dtype() : p.variable.dtype()};
      whole.shape[0] *= static_cast<std::int64_t>(names_.fused->parts.size());
      found->second.file->require_loadable(found->second.stored, whole);
      wanted.insert(part->first);
      continue;
    }
    wanted.insert(p.path);
    if (p.pairs && !is_whole(p)) {
      check_pairs(p);
      wanted.insert(positions_path(p.path));
    } else if (const auto found = tensors_.find(p.path); found != tensors_.end()) {
      found->second.file->require_loadable(
          found->second.stored,
          p.packed || p.pairs ? TensorType{p.shape(), model.dtype()} : p.variable.type());
    } else if (starts(p.path)) {
      origin.initialised.push_back(p.path);
    } else {
      missing(p.path);
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    if (wanted.contains(name) || names_.buffers.contains(name)) continue;
    if (!names_.other_heads.contains(name)) belongs_nowhere(*tensor.file, tensor.stored);
    origin.unused.push_back(tensor.stored);
  }
}

void FolderWeights::load(const nn::ModuleBase& model) const {
  if (absent()) (void)SafetensorsFile(path_);  // throws the error that says why it cannot be read
  for (const nn::NamedVariable& p : model.parameters()) load(p, model.dtype());
}

void FolderWeights::load(const nn::NamedVariable& p, DType dtype) const {
  if (is_packed_here(p)) {
    const Tensor& tensor = tensors_.at(p.path);
    tensor.file->load(tensor.stored, p.variable);
    return;
  }
  if (const auto part = names_.part(p.path); part && !tensors_.contains(p.path)) {
    load_part(part->first, part->second, p, p.packed ? dtype : p.variable.dtype());
    return;
  }
  const auto found = tensors_.find(p.path);
  if (found == tensors_.end()) return;
  const Tensor& tensor = found->second;
  if (p.packed) {
    load_packed(*tensor.file, tensor.stored, p);
  } else if (p.pairs && is_whole(p)) {
    const Variable whole(zeros(p.shape(), p.variable.dtype()));
    tensor.file->load(tensor.stored, whole);
    assign_pairs(whole, p, in_file(tensor));
  } else if (p.pairs) {
    const Tensor& positions = tensors_.at(positions_path(p.path));
    load_positions(*positions.file, positions.stored, p);
    tensor.file->load(tensor.stored, p.variable);
  } else {
    tensor.file->load(tensor.stored, p.variable);
  }
}

DType FolderWeights::stored_dtype(const std::string& parameter) const {
  const auto part = names_.part(parameter);
  return at(part && !tensors_.contains(parameter) ? part->first : parameter).type.dtype;
}

Bytes FolderWeights::loading_bytes(const nn::NamedVariable& p) const {
  const auto part = names_.part(p.path);
  if (!part || tensors_.contains(p.path)) return {};
  return 3 * static_cast<std::int64_t>(names_.fused->parts.size()) * p.variable.type().bytes();
}

void FolderWeights::load_part(const std::string& whole, std::size_t part,
                              const nn::NamedVariable& parameter, DType dtype) const {
  const Tensor& tensor = tensors_.at(whole);
  const TensorType own{parameter.shape(), dtype};
  TensorType type = own;
  const std::size_t parts = names_.fused->parts.size(),
                    heads = static_cast<std::size_t>(names_.fused->heads);
  type.shape[0] *= static_cast<std::int64_t>(parts);
  const Variable all(zeros(type.shape, type.dtype));
  tensor.file->load(tensor.stored, all);
  std::vector<std::byte> from(static_cast<std::size_t>(type.bytes().count)),
      to(from.size() / parts);
  all.node()->storage()->read(from);
  const std::size_t each = to.size() / heads;  // bytes of a head's rows
  for (std::size_t h = 0; h < heads; ++h)
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>((h * parts + part) * each), each,
                to.begin() + static_cast<std::ptrdiff_t>(h * each));
  if (parameter.packed || parameter.pairs) {
    Variable plain(zeros(own.shape, own.dtype));
    plain.assign_bytes(to);
    if (parameter.pairs)
      return assign_pairs(plain, parameter,
                          fmt::format("{}, of it \"{}\"", in_file(tensor), parameter.path));
    const ebb::Tensor packed = eval(quantise(plain, parameter.packed->encoding));
    to.resize(static_cast<std::size_t>(packed.type().bytes().count));
    packed.node()->storage()->read(to);
  }
  Variable(parameter.variable).assign_bytes(to);
}

void FolderWeights::each_piece(const std::string& name,
                               const std::function<void(std::span<const std::byte>)>& take) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) missing(name);
  found->second.file->each_piece(found->second.stored, take);
}

}  // namespace ebb::io
