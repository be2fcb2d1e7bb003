#include "ops/conv2d/cudnn_cuda.h"

#include <cudnn.h>
#include <fmt/core.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/cuda/context.h"
#include "core/cuda/library.h"
#include "ebb/error.h"
#include "ops/library_size.h"

namespace ebb::cuda {
namespace {

struct Cudnn {
  decltype(&cudnnCreate) create;
  decltype(&cudnnGetErrorString) error_string;
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

// The first algorithm of a list, sorted by speed, that is supported, deterministic, uses the
// requested arithmetic and fits the workspace limit; if none fits, the one with the smallest
// workspace. Returns its workspace too, or nothing if none is supported.
template <class Performance, class Size>
std::optional<std::pair<decltype(Performance::algo), Bytes>> first_fit(
    const std::vector<Performance>& list, cudnnMathType_t math, const Size& size) {
  std::optional<std::pair<decltype(Performance::algo), Bytes>> least;
  for (const Performance& each : list) {
    if (each.status != CUDNN_STATUS_SUCCESS || each.determinism != CUDNN_DETERMINISTIC) continue;
    if (math == CUDNN_FMA_MATH && each.mathType != CUDNN_FMA_MATH &&
        each.mathType != CUDNN_DEFAULT_MATH)
      continue;
    std::size_t bytes = 0;
    if (size(each.algo, &bytes) != CUDNN_STATUS_SUCCESS) continue;
    const Bytes needed{static_cast<std::int64_t>(bytes)};
    if (needed <= conv_workspace_limit) return std::pair{each.algo, needed};
    if (!least || needed < least->second) least.emplace(each.algo, needed);
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
  cudnnConvolutionFwdAlgo_t forward{};
  cudnnConvolutionBwdDataAlgo_t data{};
  cudnnConvolutionBwdFilterAlgo_t filter{};
  Bytes workspace;
  bool found = false;

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
    const cudnnMathType_t math = is_half(dtype)         ? CUDNN_TENSOR_OP_MATH
                                 : tf32 && dtype == f32 ? CUDNN_DEFAULT_MATH
                                                        : CUDNN_FMA_MATH;
    f.check(f.set_math(convolution, math), "cudnnSetConvolutionMathType");
    choose(math);
  }
  ~Bound() {
    if (x) (void)dnn().destroy_tensor(x);
    if (y) (void)dnn().destroy_tensor(y);
    if (weight) (void)dnn().destroy_filter(weight);
    if (convolution) (void)dnn().destroy_convolution(convolution);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

  template <class Algorithm>
  void take(Algorithm& own, const std::optional<std::pair<Algorithm, Bytes>>& choice) {
    found = choice.has_value();
    if (found) std::tie(own, workspace) = *choice;
  }

  void choose(cudnnMathType_t math) {
    const Cudnn& f = dnn();
    int count = 0;
    switch (kind) {
      case ConvKind::forward: {
        std::vector<cudnnConvolutionFwdAlgoPerf_t> list(CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
        f.check(f.forward_algorithms(handle, x, weight, convolution, y,
                                     static_cast<int>(list.size()), &count, list.data()),
                "cudnnGetConvolutionForwardAlgorithm_v7");
        list.resize(static_cast<std::size_t>(count));
        take(forward, first_fit(list, math, [&](auto algo, std::size_t* bytes) {
               return f.forward_workspace(handle, x, weight, convolution, y, algo, bytes);
             }));
        return;
      }
      case ConvKind::input_grad: {
        std::vector<cudnnConvolutionBwdDataAlgoPerf_t> list(CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
        f.check(f.data_algorithms(handle, weight, y, convolution, x, static_cast<int>(list.size()),
                                  &count, list.data()),
                "cudnnGetConvolutionBackwardDataAlgorithm_v7");
        list.resize(static_cast<std::size_t>(count));
        take(data, first_fit(list, math, [&](auto algo, std::size_t* bytes) {
               return f.data_workspace(handle, weight, y, convolution, x, algo, bytes);
             }));
        return;
      }
      case ConvKind::weight_grad: {
        std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> list(
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
        f.check(f.filter_algorithms(handle, x, y, convolution, weight,
                                    static_cast<int>(list.size()), &count, list.data()),
                "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
        list.resize(static_cast<std::size_t>(count));
        take(filter, first_fit(list, math, [&](auto algo, std::size_t* bytes) {
               return f.filter_workspace(handle, x, y, convolution, weight, algo, bytes);
             }));
        return;
      }
    }
  }
};

std::optional<Convolution> Convolution::find(Device device, ConvKind kind,
                                             const ConvGeometry& geometry, DType dtype, bool tf32) {
  if (device.index >= device_count()) return Convolution(nullptr, conv_workspace_limit);
  auto bound = std::make_shared<const Bound>(device, kind, geometry, dtype, tf32);
  if (!bound->found) return {};
  const Bytes workspace = bound->workspace;
  return Convolution(std::move(bound), workspace);
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
      f.check(f.forward(c.handle, alpha, c.x, first, c.weight, second, c.convolution, c.forward,
                        args.workspace, bytes, beta, c.y, out),
              "cudnnConvolutionForward");
      return;
    case ConvKind::input_grad:
      f.check(f.backward_data(c.handle, alpha, c.weight, first, c.y, second, c.convolution, c.data,
                              args.workspace, bytes, beta, c.x, out),
              "cudnnConvolutionBackwardData");
      return;
    case ConvKind::weight_grad:
      f.check(f.backward_filter(c.handle, alpha, c.x, first, c.y, second, c.convolution, c.filter,
                                args.workspace, bytes, beta, c.weight, out),
              "cudnnConvolutionBackwardFilter");
      return;
  }
}

}  // namespace ebb::cuda
