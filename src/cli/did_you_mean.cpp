#include "cli/did_you_mean.h"

#include <algorithm>
#include <limits>

namespace ebb::cli {
namespace {

// The number of letters that are wrong, missing, extra, or swapped with their neighbour.
std::size_t mistakes(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before = std::move(last);
    last = now;
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 64;  // longer words are not typing errors
  if (word.empty() || word.size() > longest) return {};
  std::string best;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : known) {
    if (candidate == word) return {};  // well spelt, and refused for another reason
    // In a short word one changed letter gives another word: "cg" and "sgd".
    std::size_t count = mistakes(word, candidate);
    const std::size_t allowed = std::max<std::size_t>(1, candidate.size() / 3);
    const bool begins = word.size() >= 3 && candidate.starts_with(word);
    if (begins) count = std::min<std::size_t>(count, 1);
    if ((count <= allowed && count < candidate.size()) && count < least)
      best = candidate, least = count;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string found = nearest(word, known);
  return found.empty() ? "" : "; did you mean " + found + "?";
}

}  // namespace ebb::cli
