#include "ebb/io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/hash64.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/storage.h"
#include "ops/pointwise/convert.h"

namespace ebb::io {
namespace {

using Json = nlohmann::json;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName dtype_names[] = {{"F64", f64}, {"F32", f32}, {"F16", f16}, {"BF16", bf16},
                                     {"I64", i64}, {"I32", i32}, {"U8", u8},   {"BOOL", b8}};

std::string_view safetensors_name(DType dtype) {
  for (const DTypeName& row : dtype_names)
    if (row.dtype == dtype) return row.name;
  return {};
}

// Of the metadata and the tensor that tell of checksums.
const std::string checksums_name = "checksums", checksum_kind = "xxh64";

constexpr std::uint64_t max_header = 100'000'000;  // the format's own limit

// Sizes multiplied without overflow, or nothing.
std::optional<std::int64_t> checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t total = size_of(dtype).count;
  for (std::int64_t extent : shape)
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  return total;
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

std::string eight_bytes(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

class Parser {
 public:
  Parser(const std::filesystem::path& path, std::span<const std::byte> file)
      : path_(path), file_(file) {}

  Json header() {
    if (file_.size() < 8)
      fail(
          fmt::format("a safetensors file starts with 8 bytes of length, but this one has {} bytes",
                      file_.size()));
    const std::uint64_t length = little_endian(file_);
    if (length > max_header || length > file_.size() - 8)
      fail(fmt::format("the header should be {} bytes long, but {} follow (and {} are allowed)",
                       length, file_.size() - 8, max_header));
    const auto* text = reinterpret_cast<const char*>(file_.data() + 8);
    data_ = file_.subspan(8 + length);
    // Repeated keys would otherwise be dropped without a word.
    std::vector<std::map<std::string, bool>> keys;
    const auto watch = [&](int, Json::parse_event_t event, Json& value) {
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.empty() &&
          !keys.back().emplace(value.get<std::string>(), true).second)
        fail(fmt::format("the header names \"{}\" twice", value.get<std::string>()));
      return true;
    };
    try {
      Json json = Json::parse(text, text + length, watch);
      if (!json.is_object()) fail("the header must be a JSON object");
      return json;
    } catch (const Json::exception& e) {
      fail(fmt::format("the header is not JSON: {}", e.what()));
    }
  }

  SafetensorsFile::Entry entry(const std::string& name, const Json& json) {
    const auto wrong = [&](const std::string& what) {
      fail(fmt::format("tensor \"{}\": {}", name, what));
    };
    if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
        !json.contains("data_offsets"))
      wrong("expected an object with dtype, shape and data_offsets");
    if (!json["dtype"].is_string()) wrong("dtype must be a string");
    const auto row = std::find_if(std::begin(dtype_names), std::end(dtype_names),
                                  [&](const DTypeName& r) { return r.name == json["dtype"]; });
    if (row == std::end(dtype_names))
      wrong(fmt::format("dtype {} is not one ebb has", json["dtype"].dump()));
    SafetensorsFile::Entry result;
    result.type.dtype = row->dtype;
    if (!json["shape"].is_array() || json["shape"].size() > max_rank)
      wrong(fmt::format("shape must be a list of at most {} sizes", max_rank));
    for (const Json& extent : json["shape"]) {
      if (!extent.is_number_integer() || extent.get<std::int64_t>() < 0)
        wrong(fmt::format("size {} is not a whole number", extent.dump()));
      result.type.shape.push_back(extent.get<std::int64_t>());
    }
    const Json& offsets = json["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      wrong("data_offsets must be two whole numbers");
    const std::uint64_t begin = offsets[0], end = offsets[1];
    if (begin > end || end > data_.size())
      wrong(fmt::format("bytes [{}, {}) are not within the {} bytes of data", begin, end,
                        data_.size()));
    const auto wanted = checked_bytes(result.type.shape, result.type.dtype);
    if (!wanted || static_cast<std::uint64_t>(*wanted) != end - begin)
      wrong(fmt::format("{} needs {} bytes, but data_offsets give {}", to_string(result.type),
                        wanted ? std::to_string(*wanted) : "too many", end - begin));
    result.bytes = data_.subspan(begin, end - begin);
    ranges_.push_back({begin, end, name});
    return result;
  }

  // The data must be covered without gaps or overlaps, as the format demands.
  void check_coverage() {
    std::sort(ranges_.begin(), ranges_.end());
    std::uint64_t at = 0;
    for (const auto& [begin, end, name] : ranges_) {
      if (begin != at)
        fail(fmt::format(
            "tensor \"{}\" begins at byte {} of the data, but {} is expected: a gap or an overlap",
            name, begin, at));
      at = end;
    }
    if (at != data_.size())
      fail(fmt::format("{} bytes of data belong to no tensor", data_.size() - at));
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", path_.string(), what));
  }
  std::size_t data_size() const { return data_.size(); }

 private:
  const std::filesystem::path& path_;
  std::span<const std::byte> file_, data_;
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::string>> ranges_;
};

std::span<const std::byte> map_file(const std::filesystem::path& path) {
  const auto fail = [&](const char* what) {
    throw FileError(fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("open the file");
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  if (known && !S_ISREG(status.st_mode)) {
    close(descriptor);
    throw FileError(fmt::format("{}: not a regular file", path.string()));
  }
  void* address = nullptr;
  if (known && status.st_size > 0)
    address = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE,
                   descriptor, 0);
  const int error = errno;
  close(descriptor);
  errno = error;
  if (!known || address == MAP_FAILED) fail("map the file");
  return {static_cast<const std::byte*>(address), static_cast<std::size_t>(status.st_size)};
}

// Lets the operating system have back the whole pages of mapped bytes: they have been read, and can
// be read from the file again.
void forget_pages(std::span<const std::byte> bytes) {
  const std::uintptr_t page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size());
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// An entry's values in another floating dtype, a tile at a time, so that no more than the result is
// held beside the file.
std::vector<std::byte> converted(const SafetensorsFile::Entry& entry, DType dtype) {
  constexpr std::int64_t tile = 1 << 16;  // elements
  const std::int64_t count = entry.type.shape.elements();
  const std::int64_t from_size = size_of(entry.type.dtype).count, to_size = size_of(dtype).count;
  std::vector<std::byte> result(static_cast<std::size_t>(count * to_size));
  std::vector<double> read(tile), cast(tile);  // room for any tile type
  const GatherFunction gather = gather_tile(entry.type.dtype);
  const TileFunction convert = cast_tile(entry.type.dtype, dtype);
  const StoreFunction store = store_tile(dtype);
  for (std::int64_t at = 0; at < count; at += tile) {
    const std::int64_t size = std::min(tile, count - at);
    const auto part = entry.bytes.subspan(static_cast<std::size_t>(at * from_size),
                                          static_cast<std::size_t>(size * from_size));
    gather(part.data(), 1, read.data(), size);
    TileArgs args;
    args.in[0] = read.data(), args.out = cast.data(), args.count = size;
    convert(args);
    store(cast.data(), result.data() + at * to_size, size);
    forget_pages(part);
  }
  return result;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(map_file(path_)) {
  try {
    parse();
  } catch (...) {
    if (!file_.empty()) munmap(const_cast<std::byte*>(file_.data()), file_.size());
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (!file_.empty()) munmap(const_cast<std::byte*>(file_.data()), file_.size());
}

void SafetensorsFile::parse() {
  Parser parser(path_, file_);
  const Json header = parser.header();
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__") {
      entries_.emplace(name, parser.entry(name, json));
      continue;
    }
    if (!json.is_object()) parser.fail("__metadata__ must be an object of strings");
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) parser.fail(fmt::format("metadata \"{}\" must be a string", key));
      metadata_.emplace(key, value.get<std::string>());
    }
  }
  parser.check_coverage();
  header_ = file_.first(file_.size() - parser.data_size());
  const auto kind = metadata_.find(checksums_name);
  if (kind == metadata_.end() || kind->second != checksum_kind) return;
  const auto found = entries_.find(checksums_name);
  if (found == entries_.end() || found->second.bytes.size() != 8 * entries_.size())
    parser.fail("its checksums are damaged");
  checksums_ = found->second.bytes;
  entries_.erase(found);
}

void SafetensorsFile::check_header() const {
  if (checksums_.empty()) throw FileError(fmt::format("{}: it has no checksums", path_.string()));
  if (little_endian(checksums_.last(8)) != Hash64().add(header_).value())
    throw FileError(
        fmt::format("{}: the file is damaged: its header does not have the checksum "
                    "that it was written with",
                    path_.string()));
}

void SafetensorsFile::check_tensors() const {
  check_header();
  std::size_t at = 0;
  for (const auto& [name, entry] : entries_) {
    constexpr std::size_t piece = 4 << 20;  // bytes, so that few are resident at a time
    Hash64 hash;
    for (std::size_t i = 0; i < entry.bytes.size(); i += piece) {
      const auto part = entry.bytes.subspan(i, std::min(piece, entry.bytes.size() - i));
      hash.add(part);
      forget_pages(part);
    }
    if (little_endian(checksums_.subspan(8 * at++, 8)) != hash.value())
      throw FileError(
          fmt::format("{}: the file is damaged: tensor \"{}\" does not have the checksum that it "
                      "was written with",
                      path_.string(), name));
  }
}

const SafetensorsFile::Entry& SafetensorsFile::at(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  const auto near = entries_.lower_bound(name);
  throw FileError(fmt::format(
      "{}: there is no tensor \"{}\" among its {}{}", path_.string(), name, entries_.size(),
      near == entries_.end() ? "" : fmt::format("; the next by name is \"{}\"", near->first)));
}

void SafetensorsFile::load(const std::string& name, Variable variable) const {
  const Entry& entry = at(name);
  if (entry.type.shape != variable.shape())
    throw FileError(fmt::format("{}: tensor \"{}\" has shape {}, but {} is expected",
                                path_.string(), name, to_string(entry.type.shape),
                                to_string(variable.shape())));
  if (entry.type.dtype == variable.dtype()) {
    variable.assign_bytes(entry.bytes);
    forget_pages(file_);
    return;
  }
  if (!is_floating(entry.type.dtype) || !is_floating(variable.dtype()))
    throw FileError(fmt::format("{}: tensor \"{}\" is {}, but {} is expected", path_.string(), name,
                                ebb::name(entry.type.dtype), ebb::name(variable.dtype())));
  variable.assign_bytes(converted(entry, variable.dtype()));
  forget_pages(file_);  // all: the system maps some around those that were asked for
}

void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                       std::map<std::string, std::string> metadata, Checksums checksums) {
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  if (checksums == Checksums::all) metadata[checksums_name] = checksum_kind;
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  const auto place = [&](const std::string& name, const TensorType& type) {
    if (header.contains(name))
      throw ValueError(fmt::format("[write_safetensors] two tensors are named \"{}\"", name));
    const std::int64_t size = type.bytes().count;
    header[name] = {{"dtype", safetensors_name(type.dtype)},
                    {"shape", std::vector<std::int64_t>(type.shape.begin(), type.shape.end())},
                    {"data_offsets", {offset, offset + size}}};
    offset += size;
  };
  for (const NamedTensor& t : tensors) {
    if (!t.tensor || !t.tensor.node()->storage())
      throw ValueError(fmt::format("[write_safetensors] \"{}\" has no value", t.name));
    place(t.name, t.tensor.type());
  }
  const std::int64_t sums = static_cast<std::int64_t>(tensors.size()) + 1;
  if (checksums == Checksums::all) place(checksums_name, {{8 * sums}, u8});
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts at a multiple of 8
  const std::string length = eight_bytes(text.size());

  AtomicFile file(path);
  file.write(length);
  file.write(text);
  std::string sums_text;
  std::vector<std::byte> bytes;
  for (const NamedTensor& t : tensors) {
    bytes.resize(static_cast<std::size_t>(t.tensor.type().bytes().count));
    t.tensor.node()->storage()->read(bytes);
    file.write(bytes);
    if (checksums == Checksums::all) sums_text += eight_bytes(Hash64().add(bytes).value());
  }
  if (checksums == Checksums::all)
    file.write(sums_text + eight_bytes(Hash64().add(length).add(text).value()));
  file.commit();
}

}  // namespace ebb::io
