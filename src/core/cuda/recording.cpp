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
    (void)cudaStreamEndCapture(stream, &graph);  // or the stream could not be used again
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  EBB_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
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

std::vector<double> timed(Device device, std::size_t count,
                          const std::function<void(std::size_t)>& work) {
  const cudaStream_t stream = use(device).stream;
  // One mark before each piece, and one after the last.
  struct Clocks {
    std::vector<cudaEvent_t> events;
    ~Clocks() {
      for (cudaEvent_t event : events) (void)cudaEventDestroy(event);
    }
    void add(cudaStream_t s) {
      cudaEvent_t event = nullptr;
      EBB_CUDA_CHECK(cudaEventCreate(&event));
      events.push_back(event);
      EBB_CUDA_CHECK(cudaEventRecord(event, s));
    }
  } clocks;
  clocks.add(stream);
  for (std::size_t i = 0; i < count; ++i) {
    work(i);
    clocks.add(stream);
  }
  EBB_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<double> times(count);
  for (std::size_t i = 0; i < count; ++i) {
    float ms = 0.0f;
    EBB_CUDA_CHECK(cudaEventElapsedTime(&ms, clocks.events[i], clocks.events[i + 1]));
    times[i] = static_cast<double>(ms);
  }
  return times;
}

}  // namespace ebb::cuda
