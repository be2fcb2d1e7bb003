#include <vector>

#include "ebb/op.h"
#include "ops/group/group.h"
#include "ops/list.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {

#define EBB_DECLARE(name) const Op& name##_op();
EBB_OPS(EBB_DECLARE)
#undef EBB_DECLARE

std::span<const Op* const> all_ops() {
  static const std::vector<const Op*> ops = [] {
    std::vector<const Op*> list;
#define EBB_ADD(name) list.push_back(&name##_op());
    EBB_OPS(EBB_ADD)
#undef EBB_ADD
    for (const Op* op : pointwise_ops()) list.push_back(op);
    for (std::size_t i = 0, single = list.size(); i < single; ++i)
      if (const GroupOp* group = list[i]->group()) list.push_back(group);
    return list;
  }();
  return ops;
}

}  // namespace ebb
