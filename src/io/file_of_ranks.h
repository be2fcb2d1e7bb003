// A safetensors file that all ranks of a run write together: the same file that one process would
// write. Each rank writes its byte range of every tensor, all of them at once; the file appears
// under its name when every part is on disk, or not at all.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ebb/communicator.h"
#include "ebb/tensor.h"

namespace ebb::io {

struct TensorOfRanks {
  std::string name;
  Tensor value;           // a constant or a variable with a value
  TensorType whole;       // of the tensor in the file
  bool is_range = false;  // `value` is this rank's range of it; otherwise every rank has the whole
};

// All ranks call it with the same names and types. The path and the metadata are rank 0's; the
// other ranks must see the same folder. If any rank cannot write, every rank gets the same
// FileError and a file that was there before is untouched. With checksums, as write_safetensors.
void write_file_of_ranks(const std::filesystem::path& path, std::vector<TensorOfRanks> tensors,
                         const std::map<std::string, std::string>& metadata, Communicator& ranks);

// The bytes of a rank's range in a whole tensor.
struct ByteRange {
  std::int64_t begin = 0, size = 0;
  // Of ranges of this type, the last of which may be filled up.
  static ByteRange of(const TensorType& whole, const TensorType& range, int rank);
};

}  // namespace ebb::io
