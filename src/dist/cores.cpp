// How the ranks of a host share its cores.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "core/processors.h"
#include "ebb/dist/ranks.h"
#include "ebb/threads.h"

namespace ebb::dist {
namespace {

// A rank's host and cores, by the number of one processor of each.
struct Cores {
  std::string host;
  std::set<int> processors;

  bool shares(const Cores& other) const {
    return host == other.host &&
           std::any_of(processors.begin(), processors.end(),
                       [&](int processor) { return other.processors.contains(processor); });
  }
};

Cores own_cores() {
  Cores cores;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  cores.host = name;
  for (const int processor : processors_of_cores()) cores.processors.insert(processor);
  // Where the system does not tell them, all ranks of the host share as many.
  for (int i = 0; cores.processors.empty() && i < physical_cores(); ++i) cores.processors.insert(i);
  return cores;
}

std::string to_text(const Cores& cores) {
  return fmt::format("{}\n{}", cores.host, fmt::join(cores.processors, " "));
}

Cores from_text(const std::string& text) {
  std::istringstream in(text);
  Cores cores;
  std::getline(in, cores.host);
  for (int processor = 0; in >> processor;) cores.processors.insert(processor);
  return cores;
}

}  // namespace

RankCores cores_of_a_rank(Communicator& ranks) {
  std::vector<Cores> all;
  for (const std::string& text : ranks.all_gather(to_text(own_cores()), "the cores of the ranks"))
    all.push_back(from_text(text));
  const Cores& own = all[static_cast<std::size_t>(ranks.rank())];
  std::size_t fewest = std::numeric_limits<int>::max(), before = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto sharing = static_cast<std::size_t>(std::count_if(
        all.begin(), all.end(), [&](const Cores& other) { return all[r].shares(other); }));
    fewest = std::min(fewest, all[r].processors.size() / std::max<std::size_t>(1, sharing));
    before += static_cast<int>(r) < ranks.rank() && all[r].shares(own);
  }
  RankCores result;
  result.count = std::max(1, static_cast<int>(fewest));
  const std::vector<int> processors(own.processors.begin(), own.processors.end());
  const std::size_t begin = before * fewest, end = begin + fewest;
  if (fewest > 0 && end <= processors.size())
    result.processors.assign(processors.begin() + static_cast<std::ptrdiff_t>(begin),
                             processors.begin() + static_cast<std::ptrdiff_t>(end));
  return result;
}

}  // namespace ebb::dist
