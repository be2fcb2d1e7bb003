// The page of training runs: one self-contained HTML file, as that of ebb/report/page.h.
#pragma once

#include <string>
#include <string_view>

namespace ebb::report {

// `data` is the JSON object that src/report/page/runs_data.js describes.
std::string runs_page(std::string_view title, std::string_view data);

}  // namespace ebb::report
