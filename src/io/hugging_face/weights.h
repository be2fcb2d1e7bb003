// The tensors of a model folder: model.safetensors, or several files and an index of them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ebb/io/safetensors.h"
#include "ebb/models/origin.h"
#include "ebb/nn/module.h"

namespace ebb::io {

// Parameters that files hold as one tensor: for each head, the rows of each part.
struct Fused {
  std::string whole;  // a part of the name, such as "query_key_value", where the parameters have
  std::vector<std::string> parts;  // "q_proj", "k_proj", "v_proj"
  std::int64_t heads = 1;
};

// How a family's files name their tensors.
struct Names {
  std::string prefix = {};  // of all but the heads = {}; missing in files of the bare model
  std::vector<std::string> heads = {};  // first parts of names that never have the prefix
  bool old_norms = false;               // LayerNorm.gamma and .beta stand for .weight and .bias
  std::set<std::string> buffers = {};   // tensors of old files that can be computed from the config
  std::set<std::string> other_heads = {};   // tensors of heads that ebb's model does not have
  std::vector<std::string> may_start = {};  // modules that may be missing completely
  // Parts of names that differ between files and parameters, as (in files, here). They are replaced
  // in this order. A part that does not start with a dot is the beginning of a name.
  std::vector<std::pair<std::string, std::string>> spelled = {};
  std::optional<Fused> fused = {};
  // Tensors that files hold twice: (second name, parameter), as the parameters are named.
  std::vector<std::pair<std::string, std::string>> second_names = {};

  std::string here(std::string name) const;           // of a tensor in a file
  std::string in_files(std::string parameter) const;  // the other way
  // The fused tensor's name here and the number of the part, for a parameter that is one.
  std::optional<std::pair<std::string, std::size_t>> part(const std::string& parameter) const;
};

// The parameters of a model as tensors of a file, fused ones joined.
std::vector<NamedTensor> file_tensors(const nn::ModuleBase& model, const Names& names);

class FolderWeights {
 public:
  // A single file is taken before an index, as transformers does. A folder without either has no
  // tensors: its model can be planned with, and `load` is an error.
  FolderWeights(const std::filesystem::path& folder, Names names);

  bool absent() const { return files_.empty(); }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  // An error if the tensor is not there.
  const SafetensorsFile::Entry& at(const std::string& name) const;
  // Whether two tensors have the same type and the same bytes.
  bool equal(const std::string& first, const std::string& second) const;
  void drop(const std::string& name) { tensors_.erase(name); }
  void rename(const std::string& from, const std::string& to);

  // Every parameter of the model must be in the folder, with its shape, or belong to a module that
  // may be missing; and every tensor of the folder must be known. `origin` records the exceptions.
  void check(const nn::ModuleBase& model, models::Origin& origin) const;
  // Fills the parameters that the folder has.
  void load(const nn::ModuleBase& model) const;
  // The same for one parameter of a model of this dtype.
  void load(const nn::NamedVariable& parameter, DType dtype) const;
  // The dtype of a parameter in its file; an error if it is not there.
  DType stored_dtype(const std::string& parameter) const;
  // An upper bound of what loading a parameter allocates beside its own bytes, without small
  // buffers.
  Bytes loading_bytes(const nn::NamedVariable& parameter) const;
  // The bytes of a tensor, in pieces.
  void each_piece(const std::string& name,
                  const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  struct Tensor {
    const SafetensorsFile* file;
    std::string stored;  // its name in the file
  };
  void add_index(const std::filesystem::path& folder, const std::filesystem::path& index);
  // With the prefix that a bare model's files leave out, and without old spellings.
  std::string whole_name(std::string name, bool bare) const;
  [[noreturn]] static void belongs_nowhere(const SafetensorsFile& file, const std::string& stored);
  bool starts(const std::string& parameter) const;
  // Whether a packed weight's bytes are in the folder as they are.
  bool is_packed_here(const nn::NamedVariable& parameter) const;
  // Whether a weight that is to be stored as pairs is in the folder as a whole matrix.
  bool is_whole(const nn::NamedVariable& parameter) const;
  // A weight's values and positions must be there, with their types.
  void check_pairs(const nn::NamedVariable& parameter) const;
  static std::string in_file(const Tensor& tensor);  // for messages
  void load_part(const std::string& whole, std::size_t part, const nn::NamedVariable& parameter,
                 DType dtype) const;
  [[noreturn]] void missing(const std::string& name) const;

  std::filesystem::path path_;  // of the single file or the index
  Names names_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;  // by the names of the model's parameters
};

}  // namespace ebb::io
