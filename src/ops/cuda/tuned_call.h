// How kernels that call a library get its algorithm from the tuning.
#pragma once

#include <fmt/core.h>

#include <string>

#include "ebb/error.h"
#include "ebb/op.h"
#include "ebb/tuning.h"

namespace ebb::cuda {

// The tuning's entry for a call, or null. For Purpose::tune, the library is asked about calls that
// are not known for its version.
template <class Version, class Ask>
const TunedCall* tuned_call(const Target& target, const std::string& library,
                            const std::string& call, const Version& version, const Ask& ask) {
  if (!target.tuning) return nullptr;
  if (target.purpose != Purpose::tune) return target.tuning->find(library, call);
  const TunedCall* known = target.tuning->find(library, call, version());
  return known ? known : target.tuning->add(library, call, version(), ask);
}

// Checks, before a call runs with an algorithm from the tuning, that the library is still the same.
// `fits` says whether it offers the algorithm with no more workspace than planned.
inline void require_tuned(const Target& target, const std::string& library,
                          const std::string& version, bool fits) {
  const std::string tuned = target.tuning ? target.tuning->version_of(library) : version;
  if (fits && tuned == version) return;
  throw DeviceError(fmt::format(
      "[cuda] the plan was made for algorithms of {} {}, but here is version {}, which does not "
      "offer them: make the plan again on this machine",
      library, tuned, version));
}

}  // namespace ebb::cuda
