#include "ebb/version.h"

namespace ebb {

std::string_view version() { return EBB_VERSION; }

}  // namespace ebb
