// The header of a safetensors file: 8 bytes of length, then a JSON object that gives every tensor a
// dtype, a shape and a range of the data that follows.
#pragma once

#include <map>
#include <string>

#include "data/file.h"
#include "ebb/io/safetensors.h"

namespace ebb::io {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsFile::Entry> entries;
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  // of the file: the header's end
};

// Checks all rules of the format, such as that tensors cover the data without gaps or overlaps.
// Uses at most a small multiple of the header's size in memory.
SafetensorsHeader read_safetensors_header(const data::File& file);

// A number of 8 bytes, the lowest first.
std::uint64_t little_endian(std::span<const std::byte> bytes);
std::string eight_bytes(std::uint64_t value);

// The start of a file that is to be written, and where its tensors lie.
struct SafetensorsLayout {
  std::string head;                   // length and header
  std::vector<std::int64_t> offsets;  // of each tensor, from the end of the head
  std::int64_t data_bytes = 0;        // of all, with the checksums
};
// `tensors` by name and type, in order of name. With checksums the last bytes of the file are
// theirs, 8 for each tensor and 8 for the head.
SafetensorsLayout lay_out(const std::vector<std::pair<std::string, TensorType>>& tensors,
                          std::map<std::string, std::string> metadata, Checksums checksums);

// As the format spells a dtype: "F32".
std::string_view safetensors_name(DType dtype);

}  // namespace ebb::io
