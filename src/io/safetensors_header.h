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

// As the format spells a dtype: "F32".
std::string_view safetensors_name(DType dtype);

}  // namespace ebb::io
