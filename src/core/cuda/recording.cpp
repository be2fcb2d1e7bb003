#include "core/cuda/check.h"
#include "core/cuda/context.h"

namespace ebb::cuda {

Recording::Recording(Device device, const std::function<void()>& work) : device_(device) {
  const cudaStream_t stream = use(device).stream;
  cudaGraph_t graph = nullptr;
  EBB_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &graph);  // otherwise the stream could not be used again
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  EBB_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphGetNodes(graph, nullptr, &size_), "cudaGraphGetNodes");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  executable_ = executable;
}

Recording::~Recording() {
  (void)cudaSetDevice(device_.index);
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

void Recording::replay() const {
  EBB_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), use(device_).stream));
}

}  // namespace ebb::cuda
