// What a mistyped word may have been meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ebb::cli {

// The known word that is nearest to `word`, if it is near: few letters are other, missing, too many
// or swapped, or `word` is its beginning. Otherwise empty.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "; did you mean WORD?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace ebb::cli
