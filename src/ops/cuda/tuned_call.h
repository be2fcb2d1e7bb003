// How kernels that call a library get its algorithm from the tuning.
#pragma once

#include <fmt/core.h>

#include <string>

#include "ebb/error.h"
#include "ebb/op.h"
#include "ebb/tuning.h"

namespace ebb::cuda {

// What the tuning knows of a call, or null. To tune, the library is asked for what is not known of
// its version.
template <class Version, class Ask>
const TunedCall* tuned_call(const Target& target, const std::string& library,
                            const std::string& call, const Version& version, const Ask& ask) {
  if (!target.tuning) return nullptr;
  if (target.purpose != Purpose::tune) return target.tuning->find(library, call);
  const TunedCall* known = target.tuning->find(library, call, version());
  return known ? known : target.tuning->add(library, call, version(), ask);
}

// Before a call runs by what the tuning knows: whether the library is still the one that was asked.
// `fits`: it offers the algorithm, with no more workspace than planned.
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
