// How wide UTF-8 text is on a terminal.
#pragma once

#include <string>
#include <string_view>

#include "core/utf8.h"

namespace ebb::report {

// Terminal columns of one code point: 0 for marks that combine, 2 for East Asian wide characters
// and most emoji, otherwise 1.
int columns(char32_t code_point);
int columns(std::string_view text);

// The beginning of `text` that fits; ends in an ellipsis if text was cut.
void cut_to_columns(std::string& text, int width, std::string_view ellipsis);

}  // namespace ebb::report
