// Sizes that are passed to a library as 32-bit integers (OpenBLAS, cuDNN). Kernels cannot throw
// while they run, so sizes are checked when a kernel is bound.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace ebb {

struct LibrarySize {
  std::string_view what;  // "rows"
  std::int64_t size = 0;
};

// An error that names the op and the first size above 2^31 - 1.
void require_library_sizes(std::string_view op, std::initializer_list<LibrarySize> sizes);

// The same for one size, which it gives back as the library takes it.
int library_size(std::string_view op, std::string_view what, std::int64_t size);

}  // namespace ebb
