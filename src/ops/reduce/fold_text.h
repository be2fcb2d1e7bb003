// fold.cuh, with the device headers that it includes, as NVRTC is given it. The build makes the
// text from the files (cmake/EbbCuda.cmake).
#pragma once

#include <string_view>

namespace ebb {

std::string_view fold_text();

}  // namespace ebb
