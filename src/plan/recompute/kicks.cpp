#include "plan/recompute/kicks.h"

#include <algorithm>

namespace ebb::planning {
namespace {

constexpr int most_changes = 8;
constexpr int reach = 16;  // all changes of one kick begin within this many runs

}  // namespace

Runs Kicks::operator()(Runs runs) {
  if (runs.empty()) return runs;
  Runs next;
  const int first = below(static_cast<int>(runs.size()));
  for (int count = 1 + below(most_changes); count > 0; --count) {
    next = runs;
    change(next, (first + below(reach)) % static_cast<int>(runs.size()));
    if (simulation_.run(next)) std::swap(runs, next);
  }
  return runs;
}

// Inserts, removes or moves some runs.
void Kicks::change(Runs& runs, int at) {
  const int kind = below(10);
  if (kind < 4) return insert(runs, at);
  const int size = static_cast<int>(runs.size());
  int count = 1;
  while (at + count < size && below(10) < 4) ++count;
  const auto begin = runs.begin() + at, end = begin + count;
  const int by = 1 + below(4);
  if (kind < 7)
    runs.erase(begin, end);
  else if (below(2) == 0)
    std::rotate(begin, end, end + std::min(by, size - at - count));
  else
    std::rotate(begin - std::min(by, at), begin, end);
}

// Inserts the producer of an input of run `at`, directly before it or a little earlier; then, with
// probability 1/2 each time, also a producer of an input of the step inserted last.
void Kicks::insert(Runs& runs, int at) {
  int reader = runs[static_cast<std::size_t>(at)];
  while (at > 0 && below(2) == 0) --at;
  do {
    const std::vector<int>& inputs = model_.steps[static_cast<std::size_t>(reader)].inputs;
    if (inputs.empty()) return;
    const int input = inputs[static_cast<std::size_t>(below(static_cast<int>(inputs.size())))];
    reader = model_.values[static_cast<std::size_t>(input)].producer;
    if (reader < 0) return;
    runs.insert(runs.begin() + at, reader);
  } while (below(2) == 0);
}

}  // namespace ebb::planning
