// Forward and backward of the loss as one kernel with two walks, where one walk would not pay off.
#pragma once

#include <algorithm>

#include "ebb/op.h"
#include "ops/workspace_areas.h"

namespace ebb {

// Inputs and outputs as those of linear_cross_entropy_joint; the logsumexp is of type T.
template <class Forward, class Backward, class T>
struct BothWalks {
  Forward forward;
  Backward backward;
  WorkspaceAreas areas;
  Bytes logsumexp_at, walk_at;

  BothWalks(const Forward& f, const Backward& b, std::int64_t rows) : forward(f), backward(b) {
    logsumexp_at = areas.add<T>(rows);
    walk_at = areas.add(std::max(forward.areas.total(), backward.areas.total()));
  }

  void operator()(const KernelArgs& args) const {
    std::byte* logsumexp = args.scratch<std::byte>(logsumexp_at);
    KernelArgs walk = args;
    walk.workspace = args.scratch<std::byte>(walk_at);
    std::byte* results[] = {args.outputs[0], logsumexp};
    walk.outputs = results;
    forward(walk);
    std::byte* given[] = {args.inputs[0], args.inputs[1], args.inputs[2], logsumexp,
                          args.inputs[3]};
    walk.inputs = given;
    walk.outputs = args.outputs.subspan(1);
    backward(walk);
  }
};

}  // namespace ebb
