// Items that are held out from a file whose order may mean something: texts of one class or one
// source often stand together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ebb::workloads {

// Numbers of items. `train` is ascending; every beginning of `test` has about the shares of classes
// of the whole, as a test judges the first batches.
struct Parts {
  std::vector<std::int64_t> train, test;
};

// Holds out `held_out` items, of every class about the same share. They are drawn by a seed of
// their own: the same labels give the same parts in every run, whatever its seed, so that a second
// run on the file trains on no item that the first was tested with. Labels count from 0.
Parts random_parts(std::span<const std::int32_t> labels, const std::string& source);
// The same for items without classes.
Parts random_parts(std::int64_t count, const std::string& source);

// "data.csv, all but 40 of its 400 texts, drawn at random" and "data.csv, 40 of its 400 texts,
// drawn at random".
std::string train_source(const Parts& parts, const std::string& source, const std::string& items);
std::string test_source(const Parts& parts, const std::string& source, const std::string& items);

}  // namespace ebb::workloads
