// How the levels of a multilevel problem depend on each other.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ebb::mlo {

// A problem's name, and the names it points at.
using Edges = std::vector<std::pair<std::string, std::vector<std::string>>>;

struct Dependencies {
  // Upper to lower: the loss of the lower one reads parameters of the upper one, so the upper one
  // gets hypergradients along every path from the lower one up to it.
  Edges u2l = {};
  // Lower to upper: the loss of the upper one reads parameters of the lower one, and the upper one
  // steps after the lower one's inner loop.
  Edges l2u = {};
};

// A path of hypergradients, as problem numbers: from the problem that receives the gradient,
// through the levels that its loss depends on, back to itself. {2, 1, 0, 2}: loss 2 reads
// parameters 1, whose best response depends on parameters 0, whose best response depends on
// parameters 2.
using LevelPath = std::vector<int>;

// The dependencies by number, after validation: names are known and unique, there are no cycles,
// and every upper-to-lower edge has a path back up.
struct LevelGraph {
  std::vector<std::vector<int>> uppers, lowers;  // of each problem, directly
  std::vector<std::vector<LevelPath>> paths;     // of each problem
  std::vector<int> leaves;                       // problems without levels below them

  LevelGraph(const std::vector<std::string>& names, const Dependencies& dependencies);
};

}  // namespace ebb::mlo
