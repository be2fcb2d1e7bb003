// The pages without title and data, from src/report/page. Generated when ebb is built.
#pragma once

#include <string_view>

namespace ebb::report {

std::string_view page_source();       // of studies, profiles and frontiers
std::string_view runs_page_source();  // of training runs

}  // namespace ebb::report
