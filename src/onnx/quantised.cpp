#include "onnx/quantised.h"

#include <fmt/core.h>

#include <cstring>

#include "ebb/error.h"
#include "ebb/half.h"
#include "ops/quantised_linear/codec.h"

namespace ebb::onnx {
namespace {

std::vector<std::byte> bytes_of(const Weights& weights, const std::string& name) {
  std::vector<std::byte> all;
  weights.read(name, [&](std::span<const std::byte> piece) {
    all.insert(all.end(), piece.begin(), piece.end());
  });
  return all;
}

// Element `i` of a tensor's bytes.
float element(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  };
  if (dtype == f32) return read(0.0f);
  return dtype == f16 ? static_cast<float>(read(Half{})) : static_cast<float>(read(BFloat16{}));
}

// The packed bytes of a weight.
std::vector<std::uint8_t> packed_bytes(const Weights& weights, const std::string& name,
                                       const PackedWeight& form, bool stored) {
  const std::vector<std::byte> from = bytes_of(weights, name);
  if (stored) {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(from.data());
    return {begin, begin + from.size()};
  }
  const Encoding& e = form.encoding;
  const DType dtype = weights.type(name).dtype;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(e.bytes()));
  std::vector<float> scales(static_cast<std::size_t>(e.scales())),
      row(static_cast<std::size_t>(e.columns));
  Packer packer(e, bytes.data(), scales.data());
  for (std::int64_t r = 0; r < e.rows; ++r) {
    for (std::int64_t c = 0; c < e.columns; ++c)
      row[static_cast<std::size_t>(c)] =
          element(from, dtype,
                  static_cast<std::size_t>(form.transposed ? c * e.rows + r : r * e.columns + c));
    packer.rows(row.data(), r, 1);
  }
  packer.finish();
  return bytes;
}

// Codes count from 0 in ebb and are signed in ONNX, where int4 has no gap between rows.
std::vector<std::uint8_t> signed_codes(const Encoding& e, const std::uint8_t* bytes) {
  const PackedMatrix matrix(e, bytes);
  const std::int64_t count = e.rows * e.columns;
  std::vector<std::uint8_t> codes(
      static_cast<std::size_t>(e.bits() == 8 ? count : (count + 1) / 2));
  for (std::int64_t r = 0, i = 0; r < e.rows; ++r)
    for (std::int64_t c = 0; c < e.columns; ++c, ++i) {
      if (e.bits() == 8) {
        codes[static_cast<std::size_t>(i)] = matrix.codes(r)[c] ^ 0x80;
        continue;
      }
      const int half = c % 2 == 0 ? matrix.codes(r)[c / 2] & 15 : matrix.codes(r)[c / 2] >> 4;
      codes[static_cast<std::size_t>(i / 2)] |=
          static_cast<std::uint8_t>((half ^ 8) << (i % 2 == 0 ? 0 : 4));
    }
  return codes;
}

}  // namespace

QuantisedInitializers quantised_initializers(const Weights& weights, const std::string& name,
                                             const std::string& in_file, LowBits bits,
                                             bool transposed) {
  PackedWeight form;
  const std::optional<PackedWeight> stored = weights.packed(name);
  if (stored) {
    form = *stored;
  } else {
    const Shape shape = weights.type(name).shape;
    form = {Encoding::usual(bits, shape[transposed ? 1 : 0], shape[transposed ? 0 : 1]),
            transposed};
  }
  const Encoding& e = form.encoding;
  if (e.kind == LowBits::nf4)
    throw ValueError(fmt::format(
        "[onnx] \"{}\" is in nf4, whose levels ONNX cannot express; int8 and int4 can be exported",
        in_file));
  const bool is_stored = stored.has_value();
  QuantisedInitializers result;
  result.block = e.block;
  result.codes = {in_file,
                  {{e.rows, e.columns}, u8},
                  [&weights, name, form, is_stored](const Sink& sink) {
                    const auto packed = packed_bytes(weights, name, form, is_stored);
                    const auto codes = signed_codes(form.encoding, packed.data());
                    sink(std::as_bytes(std::span(codes)));
                  },
                  Kind::weight,
                  e.kind == LowBits::int8 ? SmallType::int8 : SmallType::int4};
  result.scales = {
      in_file + "_scale",
      {{e.rows, e.blocks_in_row()}, f32},
      [&weights, name, form, is_stored](const Sink& sink) {
        const auto packed = packed_bytes(weights, name, form, is_stored);
        const PackedMatrix matrix(form.encoding, packed.data());
        std::vector<float> row(static_cast<std::size_t>(form.encoding.blocks_in_row()));
        for (std::int64_t r = 0; r < form.encoding.rows; ++r) {
          for (std::size_t block = 0; block < row.size(); ++block)
            row[block] = matrix.scale(r, static_cast<std::int64_t>(block));
          sink(std::as_bytes(std::span(row)));
        }
      },
      Kind::table,
      std::nullopt};
  return result;
}

}  // namespace ebb::onnx
