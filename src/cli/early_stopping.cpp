#include "cli/early_stopping.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <sstream>

#include "ebb/error.h"

namespace ebb::cli {

bool EarlyStopping::add(std::int64_t step, double test_loss) {
  if (!std::isfinite(test_loss) || test_loss >= best_loss_) return ++waited_, false;
  best_loss_ = test_loss, best_step_ = step, waited_ = 0;
  return true;
}

std::string EarlyStopping::note() const {
  // 17 digits restore every double exactly.
  return best_step_ ? fmt::format("{} {:.17g} {}", *best_step_, best_loss_, waited_)
                    : fmt::format("none {}", waited_);
}

void EarlyStopping::restore(const std::string& note) {
  std::istringstream text(note);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  const auto number = [&](std::size_t i, auto& value) {
    const std::string& word = words[i];
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc{} && end == word.data() + word.size();
  };
  EarlyStopping read(patience_);
  bool whole = words.size() == 2 && words[0] == "none" && number(1, read.waited_);
  if (words.size() == 3) {
    whole = number(0, read.best_step_.emplace()) && number(1, read.best_loss_) &&
            number(2, read.waited_) && *read.best_step_ >= 0 && std::isfinite(read.best_loss_);
  }
  if (!whole || read.waited_ < 0)
    throw ValueError(fmt::format("\"{}\" is not a record of a run's evaluations", note));
  *this = read;
}

}  // namespace ebb::cli
