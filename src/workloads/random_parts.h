// Items held out from a file whose order may matter: texts of one class or one source are often
// adjacent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ebb::workloads {

// Indices of items. `train` is ascending. Every prefix of `test` has about the same shares of
// classes as the whole, because a test evaluates only the first batches.
struct Parts {
  std::vector<std::int64_t> train, test;
};

// Holds out `held_out` items, about the same share of every class. They are drawn with a fixed
// seed: the same labels give the same parts in every run, whatever the run's seed, so that a second
// run on the file trains on no item that the first was tested with. Labels count from 0.
Parts random_parts(std::span<const std::int32_t> labels, const std::string& source);
// The same for items without classes.
Parts random_parts(std::int64_t count, const std::string& source);

// "data.csv, all but 40 of its 400 texts, drawn at random" and "data.csv, 40 of its 400 texts,
// drawn at random".
std::string train_source(const Parts& parts, const std::string& source, const std::string& items);
std::string test_source(const Parts& parts, const std::string& source, const std::string& items);

}  // namespace ebb::workloads
