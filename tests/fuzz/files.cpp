#include <fstream>
#include <iterator>

#include "fuzz/readers.h"

namespace ebb::fuzz {

std::filesystem::path write_file(const Folder& folder, const char* name, std::string_view bytes) {
  const std::filesystem::path path = folder / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace ebb::fuzz
