#include "ops/group/group.h"

#include <algorithm>

namespace ebb {
namespace {

const GroupAttributes& of(const Attributes& a) { return a.as<GroupAttributes>(); }

}  // namespace

GroupOp::GroupOp(const GroupSpec& spec) : spec_(spec) {
  name_ = spec.name;
  summary_ = spec.summary;
  narrowing_ = member().narrowing();
  has_reference_ = true;
  recomputable_ =
      false;  // groups contain only small tensors, so recomputing them would save nothing
}

void GroupAttributes::visit(AttributeFields& field) const {
  GroupAttributes copy = *this;
  field("inputs", copy.inputs);
  field("outputs", copy.outputs);
  field.begin_list("calls", calls.size());
  for (const Attributes& call : calls) {
    field.begin_item();
    call.visit(field);
    field.end_item();
  }
  field.end_list();
}

Attributes GroupOp::read_attributes(AttributeFields& field) const {
  GroupAttributes a;
  field("inputs", a.inputs);
  field("outputs", a.outputs);
  for (std::size_t left = field.begin_list("calls", 0); left > 0; --left) {
    field.begin_item();
    a.calls.push_back(member().read_attributes(field));
    field.end_item();
  }
  field.end_list();
  return a;
}

std::vector<TensorType> GroupOp::infer(const Call& call, const Attributes& attributes) const {
  const GroupAttributes& a = of(attributes);
  const std::size_t calls = a.calls.size();
  if (calls == 0 || calls > most_calls || call.inputs.size() != calls * a.inputs)
    call.fail_value("takes the inputs of 1 to " + std::to_string(most_calls) + " calls");
  std::vector<TensorType> outputs;
  for (std::size_t i = 0; i < calls; ++i) {
    const Call own{member(), part_of(call.inputs, i, calls), call.device, call.path};
    const std::vector<TensorType> types = member().infer(own, a.calls[i]);
    if (types.size() != static_cast<std::size_t>(a.outputs))
      own.fail_value("calls of a group have as many outputs as each other");
    outputs.insert(outputs.end(), types.begin(), types.end());
  }
  return outputs;
}

// By the reference; see Op::has_own_gradient.
std::vector<Tensor> GroupOp::gradient(const GradientCall&, const Attributes&) const { return {}; }

std::vector<Tensor> GroupOp::reference(std::span<const Tensor> inputs,
                                       const Attributes& attributes) const {
  const GroupAttributes& a = of(attributes);
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < a.calls.size(); ++i) {
    const auto own = part_of(inputs, i, a.calls.size());
    for (Tensor& output : apply(member(), {own.begin(), own.end()}, a.calls[i]))
      outputs.push_back(std::move(output));
  }
  return outputs;
}

std::optional<Layout> GroupOp::view(const TensorType&, const Layout&, int,
                                    const Attributes&) const {
  return {};
}

bool GroupOp::accepts(const Arg& arg, int input, const Attributes& attributes) const {
  const GroupAttributes& a = of(attributes);
  return member().accepts(arg, input % a.inputs,
                          a.calls[static_cast<std::size_t>(input / a.inputs)]);
}

std::vector<InPlace> GroupOp::in_place(const Attributes& attributes) const {
  const GroupAttributes& a = of(attributes);
  std::vector<InPlace> pairs;
  for (int i = 0; i < static_cast<int>(a.calls.size()); ++i)
    for (const InPlace& pair : member().in_place())
      if (pair.input < a.inputs && pair.output < a.outputs)
        pairs.push_back({i * a.outputs + pair.output, i * a.inputs + pair.input});
  return pairs;
}

Kernel GroupOp::bind(const KernelRequest& request, const Attributes& attributes) const {
  const GroupAttributes& a = of(attributes);
  const std::size_t calls = a.calls.size();
  std::vector<KernelRequest> requests;
  for (std::size_t i = 0; i < calls; ++i)
    requests.push_back({member(), part_of(request.inputs, i, calls),
                        part_of(request.outputs, i, calls), request.target});
  if (request.target.device.kind == Device::Kind::cuda) {
    if (!spec_.cuda) request.no_kernel(request.out().dtype());
    return spec_.cuda(requests, a.calls);
  }
  std::vector<std::function<void(const KernelArgs&)>> runs;
  Bytes workspace;
  for (std::size_t i = 0; i < calls; ++i) {
    Kernel kernel = member().bind(requests[i], a.calls[i]);
    workspace = std::max(workspace, kernel.workspace);
    runs.push_back(std::move(kernel.run));
  }
  return {[runs = std::move(runs)](const KernelArgs& args) {
            for (std::size_t i = 0; i < runs.size(); ++i) runs[i](call_of(args, i, runs.size()));
          },
          workspace};
}

Cost GroupOp::cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                   const Attributes& attributes) const {
  const GroupAttributes& a = of(attributes);
  Cost total;
  for (std::size_t i = 0; i < a.calls.size(); ++i) {
    const Cost own = member().cost(part_of(inputs, i, a.calls.size()),
                                   part_of(outputs, i, a.calls.size()), a.calls[i]);
    total.flops += own.flops;
    total.moved += own.moved;
    total.work = own.work;
  }
  return total;
}

}  // namespace ebb
