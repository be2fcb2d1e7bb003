#include "io/safetensors_header.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "core/json.h"

namespace ebb::io {
namespace {

using Json = nlohmann::json;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName dtype_names[] = {{"F64", f64}, {"F32", f32}, {"F16", f16}, {"BF16", bf16},
                                     {"I64", i64}, {"I32", i32}, {"U8", u8},   {"BOOL", b8}};

constexpr std::uint64_t max_header = 100'000'000;  // bytes: the format's own limit
constexpr const char* metadata_name = "__metadata__";

// Sizes multiplied without overflow, or nothing.
std::optional<std::int64_t> checked_bytes(const Shape& shape, DType dtype) {
  std::int64_t total = size_of(dtype).count;
  for (std::int64_t extent : shape)
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  return total;
}

class Parser {
 public:
  explicit Parser(const data::File& file) : file_(file) {}

  SafetensorsHeader parse() {
    const std::string text = header_text();
    try {
      // Processes each entry when it ends and drops it, so that a long header never exists as a
      // tree of JSON values.
      [[maybe_unused]] const Json rest =
          Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
            return keep(depth, event, value);
          });
    } catch (const Json::exception& e) {
      fail(fmt::format("the header is not JSON: {:.200}", plain_text(e)));
    }
    check_coverage();
    header_.data_begin = data_begin_;
    return std::move(header_);
  }

 private:
  std::string header_text() {
    std::array<std::byte, 8> length_bytes;
    if (file_.size() < 8)
      fail(
          fmt::format("a safetensors file starts with 8 bytes of length, but this one has {} bytes",
                      file_.size()));
    file_.read(0, length_bytes);
    const std::uint64_t length = little_endian(length_bytes),
                        rest = static_cast<std::uint64_t>(file_.size()) - 8;
    if (length > max_header || length > rest)
      fail(fmt::format("the header should be {} bytes long, but {} follow (and {} are allowed)",
                       length, rest, max_header));
    std::string text(length, '\0');
    file_.read(8, std::as_writable_bytes(std::span(text)));
    data_begin_ = static_cast<std::int64_t>(8 + length);
    data_size_ = rest - length;
    return text;
  }

  // Called at each step of the parser: depth 0 is the header, 1 an entry, 2 a field of it, 3 a
  // number of a list. Returns whether the value stays in the parser's result.
  bool keep(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (depth == 0 && (event == Event::value || event == Event::array_start))
      fail("the header must be a JSON object");
    if (depth == 1 && event == Event::key) {
      name_ = value.get<std::string>();
      if (header_.entries.contains(name_) || (name_ == metadata_name && has_metadata_))
        fail(fmt::format("the header names \"{:.100}\" twice", name_));
    }
    if (depth == 1 && (event == Event::value || event == Event::array_start))
      fail(name_ == metadata_name
               ? std::string("__metadata__ must be an object of strings")
               : fmt::format("tensor \"{:.100}\": expected an object with dtype, shape and "
                             "data_offsets",
                             name_));
    if (depth == 1 && event == Event::object_start) fields_.clear();
    if (depth == 2 && event == Event::key && !fields_.insert(value.get<std::string>()).second)
      fail(fmt::format("the header names {} of \"{:.100}\" twice", json_excerpt(value), name_));
    if (depth == 2 && event == Event::array_start) list_size_ = 0;
    if ((depth == 2 && event == Event::object_start) || (depth >= 3 && opens))
      wrong("lists and objects may not be nested further");
    if (depth == 3 && event == Event::value && ++list_size_ > max_rank)
      wrong(fmt::format("a list must have at most {} numbers", max_rank));
    if (depth != 1 || event != Event::object_end) return true;
    if (name_ == metadata_name)
      take_metadata(value);
    else
      header_.entries.emplace(name_, entry(value));
    return false;
  }

  void take_metadata(const Json& object) {
    has_metadata_ = true;
    for (const auto& [key, value] : object.items()) {
      if (!value.is_string())
        fail(fmt::format("metadata \"{:.100}\" must be a string, but is {}", key,
                         json_excerpt(value)));
      header_.metadata.emplace(key, value.get<std::string>());
    }
  }

  SafetensorsFile::Entry entry(const Json& json) {
    if (fields_ != std::set<std::string>{"data_offsets", "dtype", "shape"})
      wrong("expected an object with dtype, shape and data_offsets");
    if (!json["dtype"].is_string()) wrong("dtype must be a string");
    const auto row = std::find_if(std::begin(dtype_names), std::end(dtype_names),
                                  [&](const DTypeName& r) { return r.name == json["dtype"]; });
    if (row == std::end(dtype_names))
      wrong(fmt::format("dtype {} is not one ebb has", json_excerpt(json["dtype"])));
    SafetensorsFile::Entry result;
    result.type.dtype = row->dtype;
    if (!json["shape"].is_array())
      wrong(fmt::format("shape must be a list of at most {} sizes", max_rank));
    for (const Json& extent : json["shape"]) {
      if (!extent.is_number_integer() || extent.get<std::int64_t>() < 0)
        wrong(fmt::format("size {} is not a whole number", json_excerpt(extent)));
      result.type.shape.push_back(extent.get<std::int64_t>());
    }
    const Json& offsets = json["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      wrong("data_offsets must be two whole numbers");
    const std::uint64_t begin = offsets[0], end = offsets[1];
    if (begin > end || end > data_size_)
      wrong(fmt::format("bytes [{}, {}) are not within the {} bytes of data", begin, end,
                        data_size_));
    const auto wanted = checked_bytes(result.type.shape, result.type.dtype);
    if (!wanted || static_cast<std::uint64_t>(*wanted) != end - begin)
      wrong(fmt::format("{} needs {} bytes, but data_offsets give {}", to_string(result.type),
                        wanted ? std::to_string(*wanted) : "too many", end - begin));
    result.begin = data_begin_ + static_cast<std::int64_t>(begin);
    return result;
  }

  // The format requires that entries cover the data without gaps or overlaps.
  void check_coverage() const {
    std::vector<std::tuple<std::int64_t, std::int64_t, const std::string*>> ranges;
    for (const auto& [name, entry] : header_.entries)
      ranges.emplace_back(entry.begin - data_begin_, entry.type.bytes().count, &name);
    std::sort(ranges.begin(), ranges.end());
    std::int64_t at = 0;
    for (const auto& [begin, size, name] : ranges) {
      if (begin != at)
        fail(
            fmt::format("tensor \"{:.100}\" begins at byte {} of the data, but {} is expected: a "
                        "gap or an overlap",
                        *name, begin, at));
      at += size;
    }
    const std::int64_t size = static_cast<std::int64_t>(data_size_);
    if (at != size) fail(fmt::format("{} bytes of data belong to no tensor", size - at));
  }

  [[noreturn]] void wrong(const std::string& what) const {
    fail(fmt::format("tensor \"{:.100}\": {}", name_, what));
  }
  [[noreturn]] void fail(const std::string& what) const {
    data::fail_file(file_.path(), "{}", what);
  }

  const data::File& file_;
  std::int64_t data_begin_ = 0;
  std::uint64_t data_size_ = 0;
  SafetensorsHeader header_;
  bool has_metadata_ = false;
  std::string name_;              // of the entry being read
  std::set<std::string> fields_;  // of that entry, so far
  std::int64_t list_size_ = 0;    // of the field being read, so far
};

}  // namespace

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

SafetensorsHeader read_safetensors_header(const data::File& file) { return Parser(file).parse(); }

std::string_view safetensors_name(DType dtype) {
  for (const DTypeName& row : dtype_names)
    if (row.dtype == dtype) return row.name;
  return {};
}

}  // namespace ebb::io
