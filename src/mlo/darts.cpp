// Finite differences (Liu, Simonyan and Yang, 2019, seen as implicit differentiation by Choe et
// al., 2023): the inverse Hessian is taken as the identity.
#include "mlo/difference.h"

namespace ebb::mlo {

Vectors darts(const Hop& hop) {
  return mixed_difference(hop, difference(hop.parameters(), hop.vector, hop.config().darts_alpha));
}

}  // namespace ebb::mlo
