// The page that shows a study or a profile: one self-contained HTML file, with its styles, scripts
// and data inside. src/report/page holds its sources.
#pragma once

#include <string>
#include <string_view>

namespace ebb::report {

// `data` is the JSON object that src/report/page/data.js describes.
std::string html_page(std::string_view title, std::string_view data);

}  // namespace ebb::report
