// Removing groups and blocks: a smaller model whose variables are slices of the old ones.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "ebb/prune/score.h"
#include "ebb/prune/structure.h"

namespace ebb::prune {

// What is to be removed.
struct Removal {
  std::vector<std::set<int>> groups;  // by dimension; nothing is removed from those past its end
  std::set<std::size_t> blocks;

  bool empty() const;
};

// The `count` members with the lowest scores; of equal ones, the first.
std::set<int> lowest(const std::vector<double>& scores, std::int64_t count);

// How many of `size` are kept at a share `keep`: the nearest multiple of `multiple`, at least one
// multiple and at most `size`.
std::int64_t kept_of(std::int64_t size, double keep, std::int64_t multiple = 1);

// Sets everything in `removal` to zero, in place: the model then computes what the smaller one
// computes.
void set_to_zero(const Structure& structure, const Removal& removal);

// The value of a variable without the removed indices.
Tensor without(const Structure& structure, const Removal& removal, std::size_t variable);

// The path that a variable has in the smaller model, whose lists number the remaining blocks anew.
// Empty if the variable is removed with its block.
std::string path_without(const Structure& structure, const Removal& removal, std::size_t variable);

// Whether the bytes of a dense variable are freed once they have been copied.
enum class Release : bool { no, yes };

// Fills every parameter and buffer of `smaller` from the dense model. A variable that is missing or
// has another shape is an error.
void copy_kept(const Structure& structure, const Removal& removal, const nn::ModuleBase& smaller,
               Release release = Release::no);

}  // namespace ebb::prune
