// A file contains its key, so that hash collisions and truncated files are detected: "<key length>
// <value length>\n", key, value.
#include "core/disk_cache.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace ebb {
namespace {

namespace fs = std::filesystem;

std::uint64_t hash(std::string_view text, std::uint64_t start) {
  std::uint64_t h = start;  // FNV-1a
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

}  // namespace

DiskCache::DiskCache(const std::string& folder, const std::string& key) : key_(key) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path root;
  if (cache && *cache)
    root = cache;
  else if (home && *home)
    root = fs::path(home) / ".cache";
  else
    return;
  file_ = root / "ebb" / folder /
          fmt::format("{:016x}{:016x}", hash(key, 0xCBF29CE484222325ull), hash(key, 1));
}

std::optional<std::string> DiskCache::read() const {
  std::error_code error;
  if (!fs::is_regular_file(file_, error)) return std::nullopt;  // a pipe would have to be awaited
  std::ifstream in(file_, std::ios::binary);
  std::size_t key_size = 0, value_size = 0;
  if (!(in >> key_size >> value_size) || in.get() != '\n' || key_size != key_.size() ||
      value_size > (std::size_t{1} << 28))
    return std::nullopt;
  std::string key(key_size, '\0'), value(value_size, '\0');
  in.read(key.data(), static_cast<std::streamsize>(key_size));
  in.read(value.data(), static_cast<std::streamsize>(value_size));
  if (!in || key != key_) return std::nullopt;
  return value;
}

// Writes under another name first, so that no process reads half of a file.
void DiskCache::write(const std::string& value) const {
  if (file_.empty()) return;
  std::error_code error;
  fs::create_directories(file_.parent_path(), error);
  fs::path part = file_;
  part += fmt::format(".{}", getpid());
  {
    std::ofstream out(part, std::ios::binary);
    out << key_.size() << ' ' << value.size() << '\n' << key_ << value;
    if (!out.flush()) {
      fs::remove(part, error);
      return;
    }
  }
  fs::rename(part, file_, error);
  if (error) fs::remove(part, error);
}

}  // namespace ebb
