// Suggestions for mistyped words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ebb::cli {

// The known word that is nearest to `word`, if it differs by only a few wrong, missing, extra or
// swapped letters, or begins with `word`. Otherwise empty.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "; did you mean WORD?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace ebb::cli
