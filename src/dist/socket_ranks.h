#pragma once

#include <memory>

#include "dist/mesh.h"

namespace ebb::dist {

std::shared_ptr<Communicator> socket_ranks(int rank, Mesh mesh);

}  // namespace ebb::dist
