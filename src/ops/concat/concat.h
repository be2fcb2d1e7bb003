#pragma once

#include <algorithm>
#include <vector>

#include "ebb/op.h"

namespace ebb {

struct ConcatAttributes {
  int axis = 0;
  bool operator==(const ConcatAttributes&) const = default;
  void visit(auto&& field) { field("axis", axis); }
};

// Each part is `outer` blocks of its own length, laid side by side in the result's blocks.
struct ConcatBlocks {
  std::int64_t outer = 1;
  std::vector<std::int64_t> parts;  // bytes of each part's block
  std::int64_t stride = 0;          // bytes of the result's

  ConcatBlocks(const KernelRequest& request, const ConcatAttributes& a) {
    for (int i = 0; i < a.axis; ++i) outer *= request.out().shape()[i];
    for (const Arg& part : request.inputs) {
      parts.push_back(part.type.bytes().count / std::max<std::int64_t>(outer, 1));
      stride += parts.back();
    }
  }
};

const Op& concat_op();
Kernel bind_concat_cuda(const KernelRequest& request, const ConcatAttributes& attributes);

}  // namespace ebb
