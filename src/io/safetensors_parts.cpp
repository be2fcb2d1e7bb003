#include "io/safetensors_parts.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ebb/error.h"
#include "io/safetensors_header.h"

namespace ebb::io {

SafetensorsParts::SafetensorsParts(const std::filesystem::path& path,
                                   std::vector<std::pair<std::string, TensorType>> tensors,
                                   std::map<std::string, std::string> metadata)
    : path_(path), file_(path) {
  if (file_.temporary().empty())
    throw FileError(fmt::format("{}: tensors are written in any order, which needs a regular file",
                                path.string()));
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const SafetensorsLayout layout = lay_out(tensors, std::move(metadata), Checksums::none);
  const auto data = static_cast<std::int64_t>(layout.head.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    entries_[tensors[i].first] = {data + layout.offsets[i], tensors[i].second.bytes().count, 0};
  file_.write(layout.head);
  descriptor_ = open(file_.temporary().c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail("open it for writing");
  // Finds a full disk before the work begins. If the file system cannot tell, writing will.
  if (fallocate(descriptor_, 0, 0, data + layout.data_bytes) != 0 && errno == ENOSPC) {
    close(descriptor_);
    fail("reserve its space");
  }
}

SafetensorsParts::~SafetensorsParts() { close(descriptor_); }

void SafetensorsParts::fail(const char* what) const {
  throw FileError(fmt::format("{}: cannot {}: {}", path_.string(), what, std::strerror(errno)));
}

void SafetensorsParts::write(const std::string& name, std::int64_t from,
                             std::span<const std::byte> bytes) {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    throw ValueError(fmt::format("{}: no tensor \"{}\" is to be written", path_.string(), name));
  Entry& entry = found->second;
  const auto count = static_cast<std::int64_t>(bytes.size());
  if (from < 0 || from + count > entry.size || entry.written + count > entry.size)
    throw ValueError(
        fmt::format("{}: bytes {} to {} do not belong to \"{}\", which has {}, {} of "
                    "them written",
                    path_.string(), from, from + count, name, entry.size, entry.written));
  entry.written += count;
  for (std::int64_t at = entry.begin + from; !bytes.empty();) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    at += written, bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void SafetensorsParts::commit() {
  for (const auto& [name, entry] : entries_)
    if (entry.written != entry.size)
      throw ValueError(fmt::format("{}: {} of the {} bytes of \"{}\" have been written",
                                   path_.string(), entry.written, entry.size, name));
  file_.commit();
}

}  // namespace ebb::io
