#include "mlo/hypergradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "ebb/error.h"

namespace ebb::mlo {
namespace {

constexpr std::array<Vectors (*)(const Hop&), 6> methods{darts, sama,      neumann,
                                                         cg,    reinforce, unrolled};

}  // namespace

Vectors response(const Hop& hop) {
  return methods[static_cast<std::size_t>(hop.config().type)](hop);
}

}  // namespace ebb::mlo
