#include "ops/library_size.h"

#include <fmt/core.h>

#include <limits>

#include "ebb/error.h"

namespace ebb {

void require_library_sizes(std::string_view op, std::initializer_list<LibrarySize> sizes) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (const LibrarySize& s : sizes)
    if (s.size > most)
      throw ShapeError(
          fmt::format("[{}] {} must be at most {}, the most that the library which "
                      "computes it can take, but is {}; use smaller batches",
                      op, s.what, most, s.size));
}

int library_size(std::string_view op, std::string_view what, std::int64_t size) {
  require_library_sizes(op, {{what, size}});
  return static_cast<int>(size);
}

}  // namespace ebb
