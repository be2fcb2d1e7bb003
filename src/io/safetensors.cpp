#include "ebb/io/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/hash64.h"
#include "core/json.h"
#include "core/tier_block.h"
#include "data/file.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "io/safetensors_header.h"
#include "ops/pointwise/convert.h"

namespace ebb::io {
namespace {

constexpr std::int64_t piece_bytes = 1 << 18;  // whole pages of values of every dtype

// Key of the metadata, and name of the tensor with the checksums.
const std::string checksums_name = "checksums", checksum_kind = "xxh64";

// Floating values in another floating dtype, one piece after the other.
class Converter {
 public:
  Converter(DType from, DType to)
      : from_(from),
        to_(to),
        gather_(gather_tile(from)),
        convert_(cast_tile(from, to)),
        store_(store_tile(to)) {}

  // Fills the beginning of `out`; returns the number of bytes.
  std::size_t operator()(std::span<const std::byte> piece, std::span<std::byte> out) {
    const std::int64_t count = static_cast<std::int64_t>(piece.size()) / size_of(from_).count;
    const auto size = static_cast<std::size_t>(count);
    read_.resize(size), cast_.resize(size);
    gather_(piece.data(), 1, read_.data(), count);
    TileArgs args;
    args.in[0] = read_.data(), args.out = cast_.data(), args.count = count;
    convert_(args);
    store_(cast_.data(), out.data(), count);
    return size * static_cast<std::size_t>(size_of(to_).count);
  }

 private:
  DType from_, to_;
  GatherFunction gather_;
  TileFunction convert_;
  StoreFunction store_;
  std::vector<double> read_, cast_;  // room for any tile type
};

// The bytes of a variable on the CPU, for a caller that overwrites all of them: the initial value
// is dropped.
std::span<std::byte> own_bytes(Variable& variable) {
  const Bytes size = variable.type().bytes();
  if (!variable.has_value())
    variable.node()->set_storage(Storage::allocate(variable.device(), size));
  variable.node()->set_initial({});
  return {variable.node()->storage()->data(), static_cast<std::size_t>(size.count)};
}

// Copies an entry to a range outside the device, in pieces, because it may be larger than free
// memory.
void fill(TierPart to, const SafetensorsFile& file, const std::string& name, DType dtype) {
  const DType from = file.at(name).type.dtype;
  std::optional<Converter> converter;
  if (from != dtype) converter.emplace(from, dtype);
  std::vector<std::byte> values;
  file.each_piece(name, [&](std::span<const std::byte> piece) {
    if (converter) {
      values.resize(piece.size() / static_cast<std::size_t>(size_of(from).count) *
                    static_cast<std::size_t>(size_of(dtype).count));
      (*converter)(piece, values);
      piece = values;
    }
    to.block->write(to.offset, piece);
    to.offset += Bytes{static_cast<std::int64_t>(piece.size())};
  });
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(std::make_shared<data::File>(path)) {
  SafetensorsHeader header = read_safetensors_header(*file_);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  data_begin_ = header.data_begin;
  take_checksums();
}

void SafetensorsFile::take_checksums() {
  const auto kind = metadata_.find(checksums_name);
  if (kind == metadata_.end() || kind->second != checksum_kind) return;
  const auto found = entries_.find(checksums_name);
  if (found == entries_.end() ||
      found->second.type.bytes().count != 8 * static_cast<std::int64_t>(entries_.size()))
    throw FileError(fmt::format("{}: its checksums are damaged", path().string()));
  const std::vector<std::byte> stored = bytes(checksums_name);
  for (std::size_t i = 0; i < stored.size(); i += 8)
    checksums_.push_back(little_endian(std::span(stored).subspan(i, 8)));
  entries_.erase(found);
}

void SafetensorsFile::check_header() const {
  if (checksums_.empty()) throw FileError(fmt::format("{}: it has no checksums", path().string()));
  std::vector<std::byte> header(static_cast<std::size_t>(data_begin_));
  file_->read(0, header);
  if (checksums_.back() != Hash64().add(header).value())
    throw FileError(
        fmt::format("{}: the file is damaged: its header does not have the checksum "
                    "that it was written with",
                    path().string()));
}

void SafetensorsFile::check_tensors() const {
  check_header();
  std::size_t at = 0;
  for (const auto& [name, entry] : entries_) {
    Hash64 hash;
    each_piece(entry, [&](std::span<const std::byte> piece) { hash.add(piece); });
    if (checksums_[at++] != hash.value())
      throw FileError(
          fmt::format("{}: the file is damaged: tensor \"{}\" does not have the checksum that it "
                      "was written with",
                      path().string(), name));
  }
}

const std::filesystem::path& SafetensorsFile::path() const { return file_->path(); }

const SafetensorsFile::Entry& SafetensorsFile::at(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  const auto near = entries_.lower_bound(name);
  throw FileError(fmt::format(
      "{}: there is no tensor \"{}\" among its {}{}", path().string(), name, entries_.size(),
      near == entries_.end() ? "" : fmt::format("; the next by name is \"{}\"", near->first)));
}

void SafetensorsFile::require_loadable(const std::string& name, const TensorType& type) const {
  const Entry& entry = at(name);
  if (entry.type.shape != type.shape)
    throw FileError(fmt::format("{}: tensor \"{}\" has shape {}, but {} is expected",
                                path().string(), name, to_string(entry.type.shape),
                                to_string(type.shape)));
  const DType from = entry.type.dtype, to = type.dtype;
  if (from != to && !(is_floating(from) && is_floating(to)))
    throw FileError(fmt::format("{}: tensor \"{}\" is {}, but {} is expected", path().string(),
                                name, ebb::name(from), ebb::name(to)));
}

void SafetensorsFile::load(const std::string& name, Variable variable) const {
  require_loadable(name, variable.type());
  const Entry& entry = at(name);
  if (variable.has_value() && variable.node()->storage()->part().block) {
    fill(variable.node()->storage()->part(), *this, name, variable.dtype());
    variable.node()->set_initial({});
    return;
  }
  // On the host, reads directly into the variable's storage; elsewhere, through one copy.
  const bool direct = variable.device() == device::cpu &&
                      (!variable.has_value() || variable.node()->storage()->on_host());
  std::vector<std::byte> copy(direct ? 0 : static_cast<std::size_t>(variable.type().bytes().count));
  const std::span<std::byte> values = direct ? own_bytes(variable) : std::span(copy);
  if (entry.type.dtype == variable.dtype())
    file_->read(entry.begin, values);
  else
    convert(name, variable.dtype(), values);
  if (!direct) variable.assign_bytes(copy);
}

void SafetensorsFile::convert(const std::string& name, DType to, std::span<std::byte> out) const {
  Converter converted(at(name).type.dtype, to);
  each_piece(name,
             [&](std::span<const std::byte> piece) { out = out.subspan(converted(piece, out)); });
}

void SafetensorsFile::each_float_piece(
    const std::string& name, const std::function<void(std::span<const float>)>& take) const {
  const DType from = at(name).type.dtype;
  Converter converted(from, f32);
  std::vector<float> values;
  each_piece(name, [&](std::span<const std::byte> piece) {
    values.resize(piece.size() / static_cast<std::size_t>(size_of(from).count));
    converted(piece, std::as_writable_bytes(std::span(values)));
    take(values);
  });
}

std::vector<std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const Entry& entry = at(name);
  std::vector<std::byte> result(static_cast<std::size_t>(entry.type.bytes().count));
  file_->read(entry.begin, result);
  return result;
}

void SafetensorsFile::read(const std::string& name, std::int64_t from,
                           std::span<std::byte> bytes) const {
  const Entry& entry = at(name);
  if (from < 0 || from + static_cast<std::int64_t>(bytes.size()) > entry.type.bytes().count)
    throw ValueError(fmt::format(
        "{}: bytes {} to {} were asked for of \"{}\", which has {}", path().string(), from,
        from + static_cast<std::int64_t>(bytes.size()), name, entry.type.bytes().count));
  file_->read(entry.begin + from, bytes);
}

void SafetensorsFile::each_piece(
    const std::string& name, const std::function<void(std::span<const std::byte>)>& take) const {
  each_piece(at(name), take);
}

void SafetensorsFile::each_piece(
    const Entry& entry, const std::function<void(std::span<const std::byte>)>& take) const {
  const std::int64_t size = entry.type.bytes().count;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(size, piece_bytes)));
  for (std::int64_t at = 0; at < size; at += piece_bytes) {
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(piece_bytes, size - at)));
    file_->read(entry.begin + at, piece);
    take(piece);
  }
}

std::string eight_bytes(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

SafetensorsLayout lay_out(const std::vector<std::pair<std::string, TensorType>>& tensors,
                          std::map<std::string, std::string> metadata, Checksums checksums) {
  if (checksums == Checksums::all) metadata[checksums_name] = checksum_kind;
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  SafetensorsLayout layout;
  const auto place = [&](const std::string& name, const TensorType& type) {
    if (header.contains(name))
      throw ValueError(fmt::format("[write_safetensors] two tensors are named \"{}\"", name));
    const std::int64_t begin = layout.data_bytes;
    layout.data_bytes += type.bytes().count;
    header[name] = {{"dtype", safetensors_name(type.dtype)},
                    {"shape", std::vector<std::int64_t>(type.shape.begin(), type.shape.end())},
                    {"data_offsets", {begin, layout.data_bytes}}};
    return begin;
  };
  for (const auto& [name, type] : tensors) layout.offsets.push_back(place(name, type));
  const std::int64_t sums = static_cast<std::int64_t>(tensors.size()) + 1;
  if (checksums == Checksums::all) place(checksums_name, {{8 * sums}, u8});
  std::string text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts at a multiple of 8
  layout.head = eight_bytes(text.size()) + text;
  return layout;
}

void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       std::map<std::string, std::string> metadata, Checksums checksums) {
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  std::vector<std::pair<std::string, TensorType>> types;
  for (const NamedTensor& t : tensors) {
    if (!t.bytes &&
        (!t.tensor || (!t.tensor.node()->storage() && t.tensor.node()->inputs().empty())))
      throw ValueError(fmt::format("[write_safetensors] \"{}\" has no value", t.name));
    types.emplace_back(t.name, t.bytes ? t.type : t.tensor.type());
  }
  const SafetensorsLayout layout = lay_out(types, std::move(metadata), checksums);

  AtomicFile file(path);
  file.write(layout.head);
  std::string sums_text;
  std::vector<std::byte> buffer;
  for (const NamedTensor& t : tensors) {
    if (t.bytes) {
      const std::vector<std::byte> bytes = t.bytes();
      file.write(bytes);
      if (checksums == Checksums::all) sums_text += eight_bytes(Hash64().add(bytes).value());
      continue;
    }
    const Tensor value = t.tensor.node()->storage() ? t.tensor : eval(t.tensor);
    const Storage& storage = *value.node()->storage();
    const std::int64_t size = value.type().bytes().count;
    // Bytes that are not in host memory pass through a buffer.
    const std::int64_t piece = storage.on_host() ? size : std::min(size, (16_MiB).count);
    Hash64 hash;
    for (std::int64_t at = 0; at < size; at += piece) {
      const auto count = static_cast<std::size_t>(std::min(piece, size - at));
      if (!storage.on_host()) buffer.resize(count), storage.read(buffer, Bytes{at});
      const std::span<const std::byte> bytes =
          storage.on_host() ? std::span(std::as_const(storage).data(), count) : std::span(buffer);
      file.write(bytes);
      hash.add(bytes);
    }
    if (checksums == Checksums::all) sums_text += eight_bytes(hash.value());
  }
  if (checksums == Checksums::all)
    file.write(sums_text + eight_bytes(Hash64().add(layout.head).value()));
  file.commit();
}

}  // namespace ebb::io
