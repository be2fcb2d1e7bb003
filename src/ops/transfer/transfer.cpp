#include "ops/transfer/transfer.h"

#include <cstring>

#include "ebb/node.h"
#include "ebb/tensor.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

OpSpec<TransferAttributes> transfer(std::string_view name, std::string_view summary) {
  OpSpec<TransferAttributes> spec{.name = name, .summary = summary};
  spec.infer = [](const Call& call, const TransferAttributes&) {
    if (call.count() != 1) call.fail_shape("takes one tensor");
    return std::vector{call.inputs[0]};
  };
  spec.gradient = [](const GradientCall& call, const TransferAttributes&) {
    return std::vector{call.grad()};
  };
  // The runner copies between main memory and files; this kernel is for memory only.
  spec.cpu = [](const KernelRequest& request, const TransferAttributes&) {
    const auto size = static_cast<std::size_t>(request.out().type.bytes().count);
    return Kernel{.run = [size](const KernelArgs& args) {
      if (size > 0) std::memcpy(args.out<std::byte>(), args.in<std::byte>(0), size);
    }};
  };
  spec.cuda = EBB_CUDA_KERNEL(bind_transfer_cuda);
  spec.operations = 0.0;
  return spec;
}

}  // namespace

const Op& store_op() {
  static const TypedOp<TransferAttributes> op([] {
    auto spec = transfer("store", "copies a tensor from the device to another tier of memory");
    // Must run once: the file or the variable is written once, and later reads use fetch.
    spec.recomputable = false;
    return spec;
  }());
  return op;
}

const Op& fetch_op() {
  static const TypedOp<TransferAttributes> op(
      transfer("fetch", "copies a tensor from another tier of memory to the device"));
  return op;
}

}  // namespace ebb
