// Which ebb this is.
#pragma once

#include <string_view>

namespace ebb {

std::string_view version();  // "0.1.0", as in CMakeLists.txt

}  // namespace ebb
