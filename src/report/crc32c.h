// The Castagnoli checksum, which TensorBoard's record framing uses.
#pragma once

#include <cstdint>
#include <string_view>

namespace ebb::report {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace ebb::report
