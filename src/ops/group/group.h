// Several small calls of one op as one node, so that one launch replaces dozens, for example for
// the updates of biases and norms and for the sums of squares of their gradients. Inputs and
// outputs of the calls are concatenated; all properties of the node are derived from its calls.
//
// An op that can be grouped names its group's op in its record:
//
//   const GroupOp& sgd_group_op() {
//     static const GroupOp op({.name = "sgd_group", .member = sgd_op, ...});
//     return op;
//   }
//
// The pass `group_small` makes such nodes.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ebb/node.h"
#include "ebb/op.h"

namespace ebb {

struct GroupAttributes {
  std::vector<Attributes> calls;  // the attributes of each call
  int inputs = 0, outputs = 0;    // of each call
  bool operator==(const GroupAttributes&) const = default;
  void visit(AttributeFields& field) const;  // GroupOp reads them: it knows the calls' op
};

struct GroupSpec {
  std::string_view name, summary;
  const Op& (*member)() = nullptr;

  // The attributes that the calls of one group must share, in addition to the dtypes of their
  // inputs. Empty for a call that cannot be grouped.
  std::optional<Attributes> (*in_common)(std::span<const Arg> inputs, const Attributes&) = nullptr;

  // A kernel for all calls at once, with the same bits as the op's own kernel. On the CPU, where a
  // launch costs nothing, calls run in sequence.
  Kernel (*cuda)(std::span<const KernelRequest> calls, std::span<const Attributes>) = nullptr;
};

class GroupOp final : public Op {
 public:
  // The most calls in a group: limited by 32764 bytes of kernel arguments.
  static constexpr int most_calls = 128;

  explicit GroupOp(const GroupSpec& spec);

  const Op& member() const { return spec_.member(); }
  std::optional<Attributes> in_common(std::span<const Arg> inputs, const Attributes& a) const {
    return spec_.in_common(inputs, a);
  }

  std::vector<TensorType> infer(const Call&, const Attributes&) const override;
  std::vector<Tensor> gradient(const GradientCall&, const Attributes&) const override;
  std::vector<Tensor> reference(std::span<const Tensor>, const Attributes&) const override;
  std::optional<Layout> view(const TensorType&, const Layout&, int,
                             const Attributes&) const override;
  bool accepts(const Arg&, int input, const Attributes&) const override;
  std::vector<InPlace> in_place(const Attributes&) const override;
  Attributes read_attributes(AttributeFields& fields) const override;
  Kernel bind(const KernelRequest&, const Attributes&) const override;
  Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
            const Attributes&) const override;

 private:
  GroupSpec spec_;
};

// Call `i` of the `calls` equal parts of a list: of inputs or of outputs.
template <class T>
std::span<T> part_of(std::span<T> all, std::size_t i, std::size_t calls) {
  return all.subspan(i * (all.size() / calls), all.size() / calls);
}
inline KernelArgs call_of(const KernelArgs& args, std::size_t i, std::size_t calls) {
  KernelArgs own = args;
  own.inputs = part_of(args.inputs, i, calls);
  own.outputs = part_of(args.outputs, i, calls);
  return own;
}

}  // namespace ebb
