#include "io/hugging_face/load_packed.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "ebb/error.h"
#include "ops/quantised_linear/codec.h"

namespace ebb::io {
namespace {

// Packs rows as they arrive, in pieces of any size.
void pack_rows(const SafetensorsFile& file, const std::string& name, const Encoding& e,
               Packer& packer) {
  const auto columns = static_cast<std::size_t>(e.columns);
  std::vector<float> waiting;
  std::int64_t row = 0;
  file.each_float_piece(name, [&](std::span<const float> piece) {
    waiting.insert(waiting.end(), piece.begin(), piece.end());
    const std::size_t rows = waiting.size() / columns;
    packer.rows(waiting.data(), row, static_cast<std::int64_t>(rows));
    row += static_cast<std::int64_t>(rows);
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(rows * columns));
  });
}

// The file has the columns: the tensor is read whole, and its rows are gathered a few at a time.
void pack_transposed(const SafetensorsFile& file, const std::string& name, const Encoding& e,
                     Packer& packer) {
  std::vector<float> whole;
  whole.reserve(static_cast<std::size_t>(e.rows * e.columns));
  file.each_float_piece(name, [&](std::span<const float> piece) {
    whole.insert(whole.end(), piece.begin(), piece.end());
  });
  constexpr std::int64_t at_once = 64;
  std::vector<float> rows(static_cast<std::size_t>(at_once * e.columns));
  for (std::int64_t first = 0; first < e.rows; first += at_once) {
    const std::int64_t count = std::min(at_once, e.rows - first);
    for (std::int64_t c = 0; c < e.columns; ++c)
      for (std::int64_t r = 0; r < count; ++r)
        rows[static_cast<std::size_t>(r * e.columns + c)] =
            whole[static_cast<std::size_t>(c * e.rows + first + r)];
    packer.rows(rows.data(), first, count);
  }
}

}  // namespace

void load_packed(const SafetensorsFile& file, const std::string& name,
                 const nn::NamedVariable& weight) {
  const Encoding& e = weight.packed->encoding;
  file.require_loadable(name, {weight.shape(), f32});
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(e.bytes()));
  std::vector<float> scales(static_cast<std::size_t>(e.scales()));
  Packer packer(e, bytes.data(), scales.data());
  if (e.rows > 0 && e.columns > 0)
    weight.packed->transposed ? pack_transposed(file, name, e, packer)
                              : pack_rows(file, name, e, packer);
  if (!std::all_of(scales.begin(), scales.end(), [](float s) { return std::isfinite(s); }))
    throw FileError(fmt::format("{}: tensor \"{}\" holds infinities or NaN, which {} cannot store",
                                file.path().string(), name, ebb::name(e.kind)));
  packer.finish();
  Variable(weight.variable).assign_bytes(std::as_bytes(std::span(bytes)));
}

}  // namespace ebb::io
