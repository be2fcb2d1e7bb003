#include "ops/conv2d/cudnn_cuda.h"

#include <cudnn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/cuda/context.h"
#include "core/cuda/library.h"
#include "ebb/error.h"
#include "ops/cuda/tuned_call.h"
#include "ops/library_size.h"

namespace ebb::cuda {
namespace {

struct Cudnn {
  decltype(&cudnnCreate) create;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnCreateTensorDescriptor) create_tensor;
  decltype(&cudnnDestroyTensorDescriptor) destroy_tensor;
  decltype(&cudnnSetTensor4dDescriptor) set_tensor;
  decltype(&cudnnCreateFilterDescriptor) create_filter;
  decltype(&cudnnDestroyFilterDescriptor) destroy_filter;
  decltype(&cudnnSetFilter4dDescriptor) set_filter;
  decltype(&cudnnCreateConvolutionDescriptor) create_convolution;
  decltype(&cudnnDestroyConvolutionDescriptor) destroy_convolution;
  decltype(&cudnnSetConvolution2dDescriptor) set_convolution;
  decltype(&cudnnSetConvolutionGroupCount) set_groups;
  decltype(&cudnnSetConvolutionMathType) set_math;
  decltype(&cudnnGetConvolutionForwardAlgorithm_v7) forward_algorithms;
  decltype(&cudnnGetConvolutionBackwardDataAlgorithm_v7) data_algorithms;
  decltype(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) filter_algorithms;
  decltype(&cudnnGetConvolutionForwardWorkspaceSize) forward_workspace;
  decltype(&cudnnGetConvolutionBackwardDataWorkspaceSize) data_workspace;
  decltype(&cudnnGetConvolutionBackwardFilterWorkspaceSize) filter_workspace;
  decltype(&cudnnConvolutionForward) forward;
  decltype(&cudnnConvolutionBackwardData) backward_data;
  decltype(&cudnnConvolutionBackwardFilter) backward_filter;

  Cudnn() {
    const Library library("cuDNN 9", {"libcudnn.so.9"});
    library.find("cudnnCreate", create);
    library.find("cudnnGetErrorString", error_string);
    library.find("cudnnGetVersion", version);
    library.find("cudnnSetStream", set_stream);
    library.find("cudnnCreateTensorDescriptor", create_tensor);
    library.find("cudnnDestroyTensorDescriptor", destroy_tensor);
    library.find("cudnnSetTensor4dDescriptor", set_tensor);
    library.find("cudnnCreateFilterDescriptor", create_filter);
    library.find("cudnnDestroyFilterDescriptor", destroy_filter);
    library.find("cudnnSetFilter4dDescriptor", set_filter);
    library.find("cudnnCreateConvolutionDescriptor", create_convolution);
    library.find("cudnnDestroyConvolutionDescriptor", destroy_convolution);
    library.find("cudnnSetConvolution2dDescriptor", set_convolution);
    library.find("cudnnSetConvolutionGroupCount", set_groups);
    library.find("cudnnSetConvolutionMathType", set_math);
    library.find("cudnnGetConvolutionForwardAlgorithm_v7", forward_algorithms);
    library.find("cudnnGetConvolutionBackwardDataAlgorithm_v7", data_algorithms);
    library.find("cudnnGetConvolutionBackwardFilterAlgorithm_v7", filter_algorithms);
    library.find("cudnnGetConvolutionForwardWorkspaceSize", forward_workspace);
    library.find("cudnnGetConvolutionBackwardDataWorkspaceSize", data_workspace);
    library.find("cudnnGetConvolutionBackwardFilterWorkspaceSize", filter_workspace);
    library.find("cudnnConvolutionForward", forward);
    library.find("cudnnConvolutionBackwardData", backward_data);
    library.find("cudnnConvolutionBackwardFilter", backward_filter);
  }

  void check(cudnnStatus_t status, const char* call) const {
    if (status != CUDNN_STATUS_SUCCESS)
      throw DeviceError(fmt::format("[cuda] {}: {}", call, error_string(status)));
  }
};

const Cudnn& dnn() {
  static const Cudnn functions;
  return functions;
}

cudnnHandle_t handle(Device device) {
  static auto& handles = *new std::map<int, cudnnHandle_t>;  // kept: see Context
  static std::mutex mutex;
  use(device);
  const std::lock_guard lock(mutex);
  cudnnHandle_t& own = handles[device.index];
  if (!own) dnn().check(dnn().create(&own), "cudnnCreate");
  return own;
}

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDNN_DATA_DOUBLE;
    case DType::float16:
      return CUDNN_DATA_HALF;
    case DType::bfloat16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

constexpr const char* library = "cuDNN";
std::string library_version() { return std::to_string(dnn().version()); }

// The name of the convolution in a tuning: all numbers on which the choice of an algorithm depends.
std::string call_of(ConvKind kind, const ConvGeometry& g, DType dtype, bool tf32) {
  constexpr std::array kinds{"forward", "input_grad", "weight_grad"};
  return fmt::format(
      "{} {}x{}x{}x{} -> {}x{}x{} kernel {}x{} stride {}x{} padding {}x{} dilation "
      "{}x{} groups {} {}{}{}",
      kinds[static_cast<std::size_t>(kind)], g.batch, g.in, g.image.h, g.image.w, g.out, g.result.h,
      g.result.w, g.kernel.h, g.kernel.w, g.stride.h, g.stride.w, g.padding.h, g.padding.w,
      g.dilation.h, g.dilation.w, g.groups, name(dtype), g.channels_last() ? " channels_last" : "",
      tf32 ? " tf32" : "");
}

// The first algorithm of a list sorted by speed that is supported, deterministic, uses the
// requested arithmetic and fits the workspace limit. If none fits, the one with the smallest
// workspace. The choice is -1 if none is supported.
template <class Performance, class Size>
TunedCall first_fit(const std::vector<Performance>& list, cudnnMathType_t math, const Size& size) {
  TunedCall least{.choice = -1, .workspace = {}};
  for (const Performance& each : list) {
    if (each.status != CUDNN_STATUS_SUCCESS || each.determinism != CUDNN_DETERMINISTIC) continue;
    if (math == CUDNN_FMA_MATH && each.mathType != CUDNN_FMA_MATH &&
        each.mathType != CUDNN_DEFAULT_MATH)
      continue;
    std::size_t bytes = 0;
    if (size(each.algo, &bytes) != CUDNN_STATUS_SUCCESS) continue;
    const TunedCall call{static_cast<int>(each.algo), {static_cast<std::int64_t>(bytes)}};
    if (call.workspace <= conv_workspace_limit) return call;
    if (least.choice < 0 || call.workspace < least.workspace) least = call;
  }
  return least;
}

}  // namespace

struct Convolution::Bound {
  ConvKind kind;
  bool wide;  // float64, whose factors are double
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  cudnnMathType_t math;
  int algorithm = 0;  // of the kind's enumeration

  Bound(Device device, ConvKind which, const ConvGeometry& g, DType dtype, bool tf32)
      : kind(which), wide(dtype == f64), handle(cuda::handle(device)) {
    const cudnnDataType_t type = data_type(dtype);
    const cudnnTensorFormat_t format = g.channels_last() ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const auto number = [](std::int64_t n) { return library_size("conv2d", "a size", n); };
    const Cudnn& f = dnn();
    f.check(f.create_tensor(&x), "cudnnCreateTensorDescriptor");
    f.check(f.create_tensor(&y), "cudnnCreateTensorDescriptor");
    f.check(f.create_filter(&weight), "cudnnCreateFilterDescriptor");
    f.check(f.create_convolution(&convolution), "cudnnCreateConvolutionDescriptor");
    f.check(f.set_tensor(x, format, type, number(g.batch), number(g.in), number(g.image.h),
                         number(g.image.w)),
            "cudnnSetTensor4dDescriptor");
    f.check(f.set_tensor(y, format, type, number(g.batch), number(g.out), number(g.result.h),
                         number(g.result.w)),
            "cudnnSetTensor4dDescriptor");
    f.check(f.set_filter(weight, type, format, number(g.out), number(g.in / g.groups),
                         number(g.kernel.h), number(g.kernel.w)),
            "cudnnSetFilter4dDescriptor");
    f.check(
        f.set_convolution(convolution, number(g.padding.h), number(g.padding.w), number(g.stride.h),
                          number(g.stride.w), number(g.dilation.h), number(g.dilation.w),
                          CUDNN_CROSS_CORRELATION, wide ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
        "cudnnSetConvolution2dDescriptor");
    f.check(f.set_groups(convolution, number(g.groups)), "cudnnSetConvolutionGroupCount");
    // The library's default for float32 is TF32.
    math = is_half(dtype)         ? CUDNN_TENSOR_OP_MATH
           : tf32 && dtype == f32 ? CUDNN_DEFAULT_MATH
                                  : CUDNN_FMA_MATH;
    f.check(f.set_math(convolution, math), "cudnnSetConvolutionMathType");
  }
  ~Bound() {
    if (x) (void)dnn().destroy_tensor(x);
    if (y) (void)dnn().destroy_tensor(y);
    if (weight) (void)dnn().destroy_filter(weight);
    if (convolution) (void)dnn().destroy_convolution(convolution);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  // The workspace of an algorithm; the status tells whether the library supports it.
  cudnnStatus_t workspace_of(int algo, std::size_t* bytes) const {
    const Cudnn& f = dnn();
    switch (kind) {
      case ConvKind::forward:
        return f.forward_workspace(handle, x, weight, convolution, y,
                                   static_cast<cudnnConvolutionFwdAlgo_t>(algo), bytes);
      case ConvKind::input_grad:
        return f.data_workspace(handle, weight, y, convolution, x,
                                static_cast<cudnnConvolutionBwdDataAlgo_t>(algo), bytes);
      case ConvKind::weight_grad:
        return f.filter_workspace(handle, x, y, convolution, weight,
                                  static_cast<cudnnConvolutionBwdFilterAlgo_t>(algo), bytes);
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
  }

  TunedCall choose() const {
    const Cudnn& f = dnn();
    switch (kind) {
      case ConvKind::forward:
        return choose<cudnnConvolutionFwdAlgoPerf_t>(
            CUDNN_CONVOLUTION_FWD_ALGO_COUNT, [&](int size, int* count, auto* list) {
              f.check(f.forward_algorithms(handle, x, weight, convolution, y, size, count, list),
                      "cudnnGetConvolutionForwardAlgorithm_v7");
            });
      case ConvKind::input_grad:
        return choose<cudnnConvolutionBwdDataAlgoPerf_t>(
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, [&](int size, int* count, auto* list) {
              f.check(f.data_algorithms(handle, weight, y, convolution, x, size, count, list),
                      "cudnnGetConvolutionBackwardDataAlgorithm_v7");
            });
      case ConvKind::weight_grad:
        return choose<cudnnConvolutionBwdFilterAlgoPerf_t>(
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, [&](int size, int* count, auto* list) {
              f.check(f.filter_algorithms(handle, x, y, convolution, weight, size, count, list),
                      "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
            });
    }
    return {.choice = -1, .workspace = {}};
  }

  template <class Performance, class Ask>
  TunedCall choose(int most, const Ask& ask) const {
    std::vector<Performance> list(static_cast<std::size_t>(most));
    int count = 0;
    ask(most, &count, list.data());
    list.resize(static_cast<std::size_t>(count));
    return first_fit(list, math, [&](auto algo, std::size_t* bytes) {
      return workspace_of(static_cast<int>(algo), bytes);
    });
  }
};

std::optional<Convolution> Convolution::find(const Target& target, ConvKind kind,
                                             const ConvGeometry& geometry, DType dtype) {
  const std::string call = call_of(kind, geometry, dtype, target.tf32);
  const auto bound = [&] {
    return std::make_shared<Bound>(target.device, kind, geometry, dtype, target.tf32);
  };
  const TunedCall* known =
      tuned_call(target, library, call, library_version, [&] { return bound()->choose(); });
  if (known && known->choice < 0) return {};
  const Bytes planned = known ? known->workspace : conv_workspace_limit;
  if (target.purpose != Purpose::run) return Convolution(nullptr, planned);
  auto own = bound();
  const TunedCall chosen = known ? *known : own->choose();
  if (chosen.choice < 0) return {};
  if (known) {
    std::size_t bytes = 0;
    const bool supported = own->workspace_of(chosen.choice, &bytes) == CUDNN_STATUS_SUCCESS;
    require_tuned(target, library, library_version(),
                  supported && Bytes{static_cast<std::int64_t>(bytes)} <= planned);
  }
  own->algorithm = chosen.choice;
  return Convolution(std::move(own), std::max(planned, chosen.workspace));
}

void Convolution::run(const KernelArgs& args, const void* first, const void* second,
                      void* out) const {
  const Bound& c = *bound_;
  const Cudnn& f = dnn();
  const float one = 1.0f, zero = 0.0f;
  const double wide_one = 1.0, wide_zero = 0.0;
  const void* alpha = c.wide ? static_cast<const void*>(&wide_one) : &one;
  const void* beta = c.wide ? static_cast<const void*>(&wide_zero) : &zero;
  const std::size_t bytes = static_cast<std::size_t>(workspace_.count);
  f.check(f.set_stream(c.handle, static_cast<cudaStream_t>(args.stream)), "cudnnSetStream");
  switch (c.kind) {
    case ConvKind::forward:
      f.check(f.forward(c.handle, alpha, c.x, first, c.weight, second, c.convolution,
                        static_cast<cudnnConvolutionFwdAlgo_t>(c.algorithm), args.workspace, bytes,
                        beta, c.y, out),
              "cudnnConvolutionForward");
      return;
    case ConvKind::input_grad:
      f.check(f.backward_data(c.handle, alpha, c.weight, first, c.y, second, c.convolution,
                              static_cast<cudnnConvolutionBwdDataAlgo_t>(c.algorithm),
                              args.workspace, bytes, beta, c.x, out),
              "cudnnConvolutionBackwardData");
      return;
    case ConvKind::weight_grad:
      f.check(f.backward_filter(c.handle, alpha, c.x, first, c.y, second, c.convolution,
                                static_cast<cudnnConvolutionBwdFilterAlgo_t>(c.algorithm),
                                args.workspace, bytes, beta, c.weight, out),
              "cudnnConvolutionBackwardFilter");
      return;
  }
}

}  // namespace ebb::cuda
