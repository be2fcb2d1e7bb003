// The page without title and data, from src/report/page. Generated when ebb is built.
#pragma once

#include <string_view>

namespace ebb::report {

std::string_view page_source();

}  // namespace ebb::report
