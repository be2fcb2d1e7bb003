// How much a group matters: groups with small scores are removed first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/prune/structure.h"

namespace ebb::prune {

enum class Score : std::uint8_t {
  magnitude,   // √(Σ w²) over the group's weights; needs no data
  taylor,      // Σ |w · ∂loss/∂w|, summed over batches
  activation,  // mean square of the values that the group gives to the products that read it
};
Score score_named(std::string_view name);  // a ValueError lists the names
std::string_view name(Score score);

struct Scores {
  std::vector<std::vector<double>> groups;  // by dimension and group
  std::vector<double> blocks;
};

Scores magnitude_scores(const Structure& structure);

// Taylor or activation scores over batches of the types that the structure was traced for. One
// program computes the sums of a batch; gradients and activations are reduced as soon as they
// exist.
class DataScores {
 public:
  DataScores(const Structure& structure, Score score);
  ~DataScores();

  void add(const Batch& batch);
  Scores scores() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb::prune
