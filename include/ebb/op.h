// The record that defines an op: all that autodiff, the planner, the runtime and the tests need to
// know of it, in one place. An op is a pure function; its kernels are pure too and never allocate.
//
// An op's file fills in an `OpSpec<Attributes>`; `TypedOp` erases the type of the attributes, so
// that the rest of the system deals with `const Op&` alone. docs/adding-an-op.md walks through one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "ebb/attributes.h"
#include "ebb/random.h"
#include "ebb/tensor.h"

namespace ebb {

class Op;
class GroupOp;

// One application of an op, as its record sees it before there is a node.
struct Call {
  const Op& op;
  std::span<const TensorType> inputs;
  Device device;
  std::string_view path;

  const Shape& shape(int input) const { return inputs[static_cast<std::size_t>(input)].shape; }
  DType dtype(int input) const { return inputs[static_cast<std::size_t>(input)].dtype; }
  int count() const { return static_cast<int>(inputs.size()); }

  // Errors that name the op, the module path and the inputs that came.
  [[noreturn]] void fail_shape(const std::string& what) const;
  [[noreturn]] void fail_dtype(const std::string& what) const;
  [[noreturn]] void fail_value(const std::string& what) const;

  // An axis given from the front or, negative, from the back; checked against `rank`.
  int axis(std::int64_t axis, int rank) const;
  void require_rank(int input, int rank) const;
  void require_floating(int input) const;
  void require_index(int input) const;  // int64 or int32
  void require_same_dtype(int first, int second) const;
};

// Numbers of inputs or outputs, as a set: {0, 2}.
class IndexSet {
 public:
  IndexSet() = default;
  IndexSet(std::initializer_list<int> indices) {
    for (int i : indices) insert(i);
  }
  bool contains(int i) const {
    const std::size_t index = static_cast<std::size_t>(i);
    return index < has_.size() && has_[index];
  }
  void insert(int i) {
    const std::size_t index = static_cast<std::size_t>(i);
    if (index >= has_.size()) has_.resize(index + 1);
    has_[index] = true;
  }
  friend bool operator==(const IndexSet&, const IndexSet&) = default;

 private:
  std::vector<bool> has_;  // up to the largest number
};

// What the gradient rule reads besides the gradients of the outputs. Only these stay alive for
// backward.
struct Saved {
  IndexSet inputs;
  IndexSet outputs;
};

// What a gradient rule is given. Reading an input or output that `saved` does not declare is an
// error.
class GradientCall {
 public:
  GradientCall(const Node& node, std::span<const Tensor> outputs, std::span<const Tensor> grads,
               IndexSet needed);

  const Tensor& input(int i) const;
  const Tensor& output(int i) const;
  const TensorType& input_type(int i) const;
  const TensorType& output_type(int i) const;
  int input_count() const;

  // The gradient of the loss in output i: zeros when nothing depends on that output.
  Tensor grad(int i = 0) const;
  bool has_grad(int i) const;
  bool needs(int i) const {
    return needed_.contains(i);
  }  // whether anyone asks for input i's gradient

 private:
  const Node& node_;
  std::span<const Tensor> outputs_;
  std::span<const Tensor> grads_;
  IndexSet needed_;
};

// How a value lies in its buffer: strides and offset in elements.
struct Layout {
  Strides strides;
  std::int64_t offset = 0;
};

// One tensor as a kernel meets it.
struct Arg {
  TensorType type;
  Strides strides;
  std::int64_t offset = 0;  // elements from the beginning of its buffer, which is well aligned

  const Shape& shape() const { return type.shape; }
  DType dtype() const { return type.dtype; }
  bool contiguous() const { return is_contiguous(type.shape, strides); }
};

// What a kernel is bound to, once, when a program is compiled.
struct KernelRequest {
  const Op& op;
  std::span<const Arg> inputs;
  std::span<const Arg> outputs;  // always contiguous
  Device device;
  bool tf32 = false;  // products of float32 may round their factors to TF32 (see PlanOptions)

  const Arg& in(int i) const { return inputs[static_cast<std::size_t>(i)]; }
  const Arg& out(int i = 0) const { return outputs[static_cast<std::size_t>(i)]; }
  [[noreturn]] void no_kernel(DType dtype) const;  // names op, device and dtype
};

// Where a kernel notes bad data that only running can show: an index out of range. Kernels cannot
// throw from their threads; the runtime looks here afterwards and raises the error.
struct Fault {
  std::atomic<bool> raised = false;
  std::int64_t position = 0, value = 0, limit = 0;

  void out_of_range(std::int64_t at, std::int64_t index, std::int64_t size) {
    if (raised.exchange(true)) return;  // the first is enough
    position = at, value = index, limit = size;
  }
};

namespace cuda {
struct Control;
}

// What a kernel is given each time it runs.
struct KernelArgs {
  std::span<std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::byte* workspace = nullptr;
  RandomState random;
  Fault* fault = nullptr;

  // On a CUDA device, where all pointers above are the device's. Kernels run on `stream` (a
  // cudaStream_t) and find the random state and the fault slot in `control`, in the device's
  // memory: a recorded step can then be replayed with other numbers.
  void* stream = nullptr;
  cuda::Control* control = nullptr;
  int instruction = 0;  // its number in the plan, for the fault slot

  template <class T>
  const T* in(int i) const {
    return reinterpret_cast<const T*>(inputs[static_cast<std::size_t>(i)]);
  }
  template <class T>
  T* out(int i = 0) const {
    return reinterpret_cast<T*>(outputs[static_cast<std::size_t>(i)]);
  }
  template <class T>
  T* scratch(Bytes offset = {}) const {
    return reinterpret_cast<T*>(workspace + offset.count);
  }
};

// A kernel bound to its shapes: how much workspace it needs, and what runs.
struct Kernel {
  std::function<void(const KernelArgs&)> run;
  Bytes workspace = {};
};

// What most of an op's operations are: each kind runs at a rate of its own.
enum class Work : std::uint8_t { elementwise, product, attention, convolution };
inline constexpr int work_count = 4;
std::string_view name(Work work);

// Work and traffic of one call, for the planner's clock. Operations are counted in units of their
// kind (see WorkRate): what is no plain addition or product counts by the time it takes beside one.
struct Cost {
  double flops = 0.0;
  Bytes moved = {};  // read plus written, each once
  Work work = Work::elementwise;
};

// Output `output` may be written over input `input` (same bytes, both contiguous).
struct InPlace {
  int output = 0;
  int input = 0;
};

// What training in half precision does to an op (passes/precision.h).
enum class Narrowing : std::uint8_t {
  follows,  // it takes what its inputs have; arithmetic inside kernels is in float32 anyway
  sought,   // it is done on halves: products, whose time and results are worth it
  refused,  // it is done on float32: results that need the range or the digits
};

// One way to do a call of an op: another kernel for the same function.
struct Variant {
  std::string_view name;
  Attributes attributes;  // of the call done this way
  bool same_bits = true;  // as the first variant; then the planner may choose it by itself
};

struct PointwiseRow;

// The definition of an op with attributes of type A. Function pointers left null take the default
// named.
template <class A>
struct OpSpec {
  std::string_view name;
  std::string_view summary;  // one line for the table of ops

  // Checks the call and gives the type of each output.
  std::vector<TensorType> (*infer)(const Call&, const A&) = nullptr;

  // Gradients of the inputs; an empty tensor where there is none. Default: that of `reference`.
  std::vector<Tensor> (*gradient)(const GradientCall&, const A&) = nullptr;
  Saved saved = {};

  // The same function in more primitive ops: specification, test oracle, and gradient by default.
  std::vector<Tensor> (*reference)(std::span<const Tensor>, const A&) = nullptr;

  std::vector<InPlace> in_place = {};

  // For an op that only looks at its first input in another way: how output `output` lies in the
  // input's buffer, or nothing when that layout cannot be expressed (the input is then copied
  // first).
  std::optional<Layout> (*view)(const TensorType& input, const Layout&, int output,
                                const A&) = nullptr;

  // Whether the kernel takes this input as it lies. Default: only contiguous.
  bool (*accepts)(const Arg&, int input, const A&) = nullptr;

  Kernel (*cpu)(const KernelRequest&, const A&) = nullptr;
  Kernel (*cuda)(const KernelRequest&, const A&) = nullptr;

  // Default: `operations` for each element of the outputs, and every input and output moved once.
  Cost (*cost)(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const A&) = nullptr;
  double operations = 1.0;

  // The op that does several small calls of this one at once (src/ops/group). Default: there is
  // none.
  const GroupOp& (*group)() = nullptr;

  // The ways to do a call on a device, the fastest first. Default: there is one way.
  std::vector<Variant> (*variants)(std::span<const TensorType> inputs, Device, const A&) = nullptr;

  bool recomputable = true;  // running it again in the same step gives the same bits
  Narrowing narrowing = Narrowing::follows;
  const PointwiseRow* pointwise = nullptr;
};

Cost default_cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                  double operations = 1.0);

// A gradient rule for ops whose output does not depend smoothly on any input.
template <class A>
std::vector<Tensor> zero_gradient(const GradientCall& call, const A&) {
  return std::vector<Tensor>(static_cast<std::size_t>(call.input_count()));
}

class Op {
 public:
  virtual ~Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  std::string_view name() const { return name_; }
  std::string_view summary() const { return summary_; }
  const Saved& saved() const { return saved_; }
  const std::vector<InPlace>& in_place() const { return in_place_; }  // of one call
  const GroupOp* group() const { return group_ ? &group_() : nullptr; }
  bool recomputable() const { return recomputable_; }
  Narrowing narrowing() const { return narrowing_; }
  bool is_view() const { return is_view_; }
  bool has_reference() const { return has_reference_; }
  bool has_gradient() const { return has_gradient_ || has_reference_; }
  const PointwiseRow* pointwise() const { return pointwise_; }

  virtual std::vector<TensorType> infer(const Call&, const Attributes&) const = 0;
  virtual std::vector<Tensor> gradient(const GradientCall&, const Attributes&) const = 0;
  virtual std::vector<Tensor> reference(std::span<const Tensor>, const Attributes&) const = 0;
  virtual std::optional<Layout> view(const TensorType&, const Layout&, int output,
                                     const Attributes&) const = 0;
  virtual bool accepts(const Arg&, int input, const Attributes&) const = 0;
  // The pairs of a node with these attributes, which may be several calls.
  virtual std::vector<InPlace> in_place(const Attributes&) const { return in_place_; }
  // Attributes of this op, with the values that `fields` gives.
  virtual Attributes read_attributes(AttributeFields& fields) const = 0;
  virtual Kernel bind(const KernelRequest&, const Attributes&) const = 0;
  virtual Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                    const Attributes&) const = 0;

  // The ways to do a call, the fastest first; none where there is only one.
  virtual std::vector<Variant> variants(std::span<const TensorType>, Device,
                                        const Attributes&) const {
    return {};
  }
  bool has_variants() const { return has_variants_; }

  // Whether `gradient` is a rule of the op's own rather than its reference's.
  bool has_own_gradient() const { return has_gradient_; }

 protected:
  Op() = default;

  std::string_view name_, summary_;
  Saved saved_;
  std::vector<InPlace> in_place_;
  const GroupOp& (*group_)() = nullptr;
  bool recomputable_ = true, is_view_ = false, has_reference_ = false, has_gradient_ = false,
       has_variants_ = false;
  Narrowing narrowing_ = Narrowing::follows;
  const PointwiseRow* pointwise_ = nullptr;
};

template <class A>
class TypedOp final : public Op {
 public:
  explicit TypedOp(const OpSpec<A>& spec) : spec_(spec) {
    name_ = spec.name;
    summary_ = spec.summary;
    saved_ = spec.saved;
    in_place_ = spec.in_place;
    group_ = spec.group;
    recomputable_ = spec.recomputable;
    narrowing_ = spec.narrowing;
    is_view_ = spec.view != nullptr;
    has_reference_ = spec.reference != nullptr;
    has_gradient_ = spec.gradient != nullptr;
    pointwise_ = spec.pointwise;
    has_variants_ = spec.variants != nullptr;
  }

  std::vector<TensorType> infer(const Call& call, const Attributes& a) const override {
    return spec_.infer(call, a.as<A>());
  }
  std::vector<Tensor> gradient(const GradientCall& call, const Attributes& a) const override {
    return spec_.gradient(call, a.as<A>());
  }
  std::vector<Tensor> reference(std::span<const Tensor> inputs,
                                const Attributes& a) const override {
    return spec_.reference(inputs, a.as<A>());
  }
  std::optional<Layout> view(const TensorType& type, const Layout& layout, int output,
                             const Attributes& a) const override {
    return spec_.view(type, layout, output, a.as<A>());
  }
  bool accepts(const Arg& arg, int input, const Attributes& a) const override {
    return spec_.accepts ? spec_.accepts(arg, input, a.as<A>()) : arg.contiguous();
  }
  Attributes read_attributes(AttributeFields& fields) const override {
    A attributes{};
    attributes.visit(fields);
    return attributes;
  }
  Kernel bind(const KernelRequest& request, const Attributes& a) const override {
    const auto kernel = request.device.kind == Device::Kind::cpu ? spec_.cpu : spec_.cuda;
    if (!kernel) request.no_kernel(request.outputs.empty() ? f32 : request.out().dtype());
    return kernel(request, a.as<A>());
  }
  Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
            const Attributes& a) const override {
    return spec_.cost ? spec_.cost(inputs, outputs, a.as<A>())
                      : default_cost(inputs, outputs, spec_.operations);
  }
  std::vector<Variant> variants(std::span<const TensorType> inputs, Device device,
                                const Attributes& a) const override {
    return spec_.variants ? spec_.variants(inputs, device, a.as<A>()) : std::vector<Variant>{};
  }

 private:
  OpSpec<A> spec_;
};

// Adds a node to the graph: checks the call, infers the outputs, computes nothing.
std::vector<Tensor> apply(const Op& op, std::vector<Tensor> inputs, Attributes attributes = {});

// The same for an op with one output.
Tensor apply1(const Op& op, std::vector<Tensor> inputs, Attributes attributes = {});

// The same for an op without inputs, which must be told where it runs.
Tensor create(const Op& op, Device device, Attributes attributes);

// An axis of `x` given from the front or, negative, from the back. `rank` is x's own unless the
// axis is of a result with another one.
int wrap_axis(const Op& op, const Tensor& x, std::int64_t axis, std::optional<int> rank = {});

// The call that applying `op` to `x` alone would be, for functions that check more before they
// apply it.
Call call_on(const Op& op, const Tensor& x);

// Every op of the library.
std::span<const Op* const> all_ops();

}  // namespace ebb
