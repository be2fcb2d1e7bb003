#include "core/cuda/check.h"
#include "core/cuda/context.h"

namespace ebb::cuda {

Marks::Marks(Device device, std::size_t count) : device_(device), events_(count) {
  use(device);
  for (auto& event : events_) {
    cudaEvent_t made = nullptr;
    EBB_CUDA_CHECK(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    event.reset(made);
  }
}

void Marks::Destroy::operator()(void* event) const noexcept {
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void Marks::set(std::size_t mark, Lane lane) const {
  EBB_CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(events_[mark].get()),
                                 static_cast<cudaStream_t>(stream(device_, lane))));
}

void Marks::await(std::size_t mark, Lane lane) const {
  EBB_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream(device_, lane)),
                                     static_cast<cudaEvent_t>(events_[mark].get()), 0));
}

}  // namespace ebb::cuda
