// The record that defines an op: everything that autodiff, planner, runtime and tests need to know
// about it. An op is a pure function; its kernels are pure too and never allocate.
//
// An op's file fills in an `OpSpec<Attributes>`; `TypedOp` erases the type of the attributes, so
// that the rest of the library uses `const Op&` only. docs/adding-an-op.md adds one step by step.
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

// One application of an op before its node exists: what `infer` is given.
struct Call {
  const Op& op;
  std::span<const TensorType> inputs;
  Device device;
  std::string_view path;

  const Shape& shape(int input) const { return inputs[static_cast<std::size_t>(input)].shape; }
  DType dtype(int input) const { return inputs[static_cast<std::size_t>(input)].dtype; }
  int count() const { return static_cast<int>(inputs.size()); }

  // Throw errors that name the op, the module path and the types of the inputs.
  [[noreturn]] void fail_shape(const std::string& what) const;
  [[noreturn]] void fail_dtype(const std::string& what) const;
  [[noreturn]] void fail_value(const std::string& what) const;

  // `axis` as a number in [0, rank); a negative axis counts from the back. Throws if out of range.
  int axis(std::int64_t axis, int rank) const;
  void require_rank(int input, int rank) const;
  void require_floating(int input) const;
  void require_index(int input) const;  // int64 or int32
  void require_same_dtype(int first, int second) const;
};

// A set of indices of inputs or outputs: {0, 2}.
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
  std::vector<bool> has_;  // up to the largest index
};

// Inputs and outputs that the gradient rule reads besides the gradients of the outputs. Only these
// are kept alive for backward.
struct Saved {
  IndexSet inputs;
  IndexSet outputs;
};

// The argument of a gradient rule. Reading an input or output that `saved` does not declare is an
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

  // Gradient of the loss with respect to output i: zeros if the loss does not depend on it.
  Tensor grad(int i = 0) const;
  bool has_grad(int i) const;
  bool needs(int i) const {
    return needed_.contains(i);
  }  // whether the gradient of input i is used

 private:
  const Node& node_;
  std::span<const Tensor> outputs_;
  std::span<const Tensor> grads_;
  IndexSet needed_;
};

// Strides and offset of a value in its buffer, in elements.
struct Layout {
  Strides strides;
  std::int64_t offset = 0;
};

// Type and layout of one operand of a kernel.
struct Arg {
  TensorType type;
  Strides strides;
  std::int64_t offset = 0;  // in elements from the beginning of its aligned buffer

  const Shape& shape() const { return type.shape; }
  DType dtype() const { return type.dtype; }
  bool contiguous() const { return is_contiguous(type.shape, strides); }
};

class TuningUse;

// Why a kernel is bound.
enum class Purpose : std::uint8_t {
  describe,  // to learn its workspace and time for a plan; does not use the device
  tune,      // to query and time library algorithms that are missing from the tuning
  run,       // to run it
};

// The device of a call, and the tuning of that device's libraries.
struct Target {
  Device device;
  bool tf32 = false;  // products of float32 may round their factors to TF32 (see PlanOptions)
  Purpose purpose = Purpose::describe;
  TuningUse* tuning = nullptr;  // null: no algorithm is known
};

// One call of an op, as a kernel is bound to it.
struct KernelRequest {
  const Op& op;
  std::span<const Arg> inputs;
  std::span<const Arg> outputs;  // always contiguous
  Target target;

  const Arg& in(int i) const { return inputs[static_cast<std::size_t>(i)]; }
  const Arg& out(int i = 0) const { return outputs[static_cast<std::size_t>(i)]; }
  [[noreturn]] void no_kernel(DType dtype) const;  // names op, device and dtype
};

// Where a kernel records invalid data, that is an index out of range. Kernels cannot throw from
// their threads, so the runtime checks this record after the kernel and throws the error.
struct Fault {
  std::atomic<bool> raised = false;
  std::int64_t position = 0, value = 0, limit = 0;

  void out_of_range(std::int64_t at, std::int64_t index, std::int64_t size) {
    if (raised.exchange(true)) return;  // only the first fault is reported
    position = at, value = index, limit = size;
  }
};

namespace cuda {
struct Control;
}

// The arguments of a kernel for one run.
struct KernelArgs {
  std::span<std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::byte* workspace = nullptr;
  RandomState random;
  Fault* fault = nullptr;

  // For CUDA devices, where all pointers above are device pointers. Kernels run on `stream` (a
  // cudaStream_t) and read the random state and write faults in `control`, which is in device
  // memory: so a captured CUDA graph can be replayed with another random state.
  void* stream = nullptr;
  cuda::Control* control = nullptr;
  int instruction = 0;  // its index in the plan, to be recorded with a fault

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

// The kind of most of an op's arithmetic. A device has a separate rate for each kind (Rates).
enum class Work : std::uint8_t { elementwise, product, attention, convolution };
inline constexpr int work_count = 4;
std::string_view name(Work work);

// Arithmetic and memory traffic of one call, from which its time is predicted. Elementwise
// functions other than addition count as their time divided by that of an addition (see WorkRate).
struct Cost {
  double flops = 0.0;
  Bytes moved = {};  // bytes read plus bytes written, each counted once
  Work work = Work::elementwise;
};

// A kernel for given shapes: a function and the size of its workspace. With the same tuning the
// workspace is the same for every Purpose; `run` may only be called after binding for Purpose::run.
struct Kernel {
  std::function<void(const KernelArgs&)> run;
  Bytes workspace = {};
  // Measured time of the library calls in the kernel (see Tuning), and the cost of everything else
  // in it. 0: not measured; the time is predicted from the op's cost.
  double library_ms = 0.0;
  Cost beside = {};
};

// Output `output` may share the buffer of input `input` (same size, both contiguous).
struct InPlace {
  int output = 0;
  int input = 0;
};

// The dtype in which an op runs when training in half precision (ebb/precision.h).
enum class Narrowing : std::uint8_t {
  follows,  // the widest dtype of its inputs; kernels compute in float32 internally anyway
  sought,   // half precision: products, which gain the most time and memory
  refused,  // float32: the result needs the range or the precision
};

// One of several implementations of the same op.
struct Variant {
  std::string_view name;
  Attributes attributes;  // of a call that uses this variant
  bool same_bits = true;  // as the first variant: the planner may then choose it by itself
};

struct PointwiseRow;

// The definition of an op with attributes of type A. A null function pointer means the default that
// its comment names.
template <class A>
struct OpSpec {
  std::string_view name;
  std::string_view summary;  // one line for the table of ops

  // Checks the call and returns the type of each output.
  std::vector<TensorType> (*infer)(const Call&, const A&) = nullptr;

  // Gradients of the inputs; an empty tensor means no gradient. Default: that of `reference`.
  std::vector<Tensor> (*gradient)(const GradientCall&, const A&) = nullptr;
  Saved saved = {};

  // The same function in more primitive ops: specification, test oracle and default gradient.
  std::vector<Tensor> (*reference)(std::span<const Tensor>, const A&) = nullptr;

  std::vector<InPlace> in_place = {};

  // Makes the op a view of its first input: returns the layout of output `output` in the input's
  // buffer, or nothing if strides cannot express it (`insert_copies` then copies the input first).
  // Default: the op is no view.
  std::optional<Layout> (*view)(const TensorType& input, const Layout&, int output,
                                const A&) = nullptr;

  // Whether the kernel can read this input with its strides. Default: only if contiguous.
  bool (*accepts)(const Arg&, int input, const A&) = nullptr;

  Kernel (*cpu)(const KernelRequest&, const A&) = nullptr;
  Kernel (*cuda)(const KernelRequest&, const A&) = nullptr;

  // Default: `operations` per output element; every input and output is moved once.
  Cost (*cost)(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const A&) = nullptr;
  double operations = 1.0;

  // The op that runs several small calls of this op in one kernel (src/ops/group). Default: calls
  // are not grouped.
  const GroupOp& (*group)() = nullptr;

  // The variants of a call on a device, fastest first. Default: there is only one implementation.
  std::vector<Variant> (*variants)(std::span<const TensorType> inputs, Device, const A&) = nullptr;

  bool recomputable = true;  // whether a second run in the same step gives the same bits
  Narrowing narrowing = Narrowing::follows;
  const PointwiseRow* pointwise = nullptr;
};

Cost default_cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                  double operations = 1.0);

// The gradient rule of ops that are not differentiable in any input, such as comparisons.
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
  // The pairs of a node with these attributes; a GroupOp's node stands for several calls.
  virtual std::vector<InPlace> in_place(const Attributes&) const { return in_place_; }
  // Attributes of this op with the values in `fields`.
  virtual Attributes read_attributes(AttributeFields& fields) const = 0;
  virtual Kernel bind(const KernelRequest&, const Attributes&) const = 0;
  virtual Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                    const Attributes&) const = 0;

  // The variants of a call, fastest first; empty if there is only one implementation.
  virtual std::vector<Variant> variants(std::span<const TensorType>, Device,
                                        const Attributes&) const {
    return {};
  }
  bool has_variants() const { return has_variants_; }

  // Whether the op has its own gradient rule rather than that of its reference.
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
    const auto kernel = request.target.device.kind == Device::Kind::cpu ? spec_.cpu : spec_.cuda;
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

// Adds a node to the graph: checks the call and infers the types of the outputs; computes nothing.
std::vector<Tensor> apply(const Op& op, std::vector<Tensor> inputs, Attributes attributes = {});

// The same for an op with one output.
Tensor apply1(const Op& op, std::vector<Tensor> inputs, Attributes attributes = {});

// The same for an op without inputs, whose device cannot be inferred.
Tensor create(const Op& op, Device device, Attributes attributes);

// `axis` as a number in [0, rank); a negative axis counts from the back. The default rank is that
// of `x`; give another if the axis refers to a result of another rank.
int wrap_axis(const Op& op, const Tensor& x, std::int64_t axis, std::optional<int> rank = {});

// The Call of applying `op` to `x` alone, for functions that check more than `infer` before they
// apply the op.
Call call_on(const Op& op, const Tensor& x);

// Every op of the library.
std::span<const Op* const> all_ops();

}  // namespace ebb
