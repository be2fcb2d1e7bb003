#include "core/cuda/check.h"
#include "core/cuda/context.h"

namespace ebb::cuda {

namespace {

Events make_events(Device device, std::size_t count, unsigned flags) {
  use(device);
  Events events(count);
  for (auto& event : events) {
    cudaEvent_t made = nullptr;
    EBB_CUDA_CHECK(cudaEventCreateWithFlags(&made, flags));
    event.reset(made);
  }
  return events;
}

cudaEvent_t at(const Events& events, std::size_t i) {
  return static_cast<cudaEvent_t>(events[i].get());
}
cudaStream_t stream_of(Device device, Lane lane) {
  return static_cast<cudaStream_t>(stream(device, lane));
}

}  // namespace

void DestroyEvent::operator()(void* event) const noexcept {
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

Marks::Marks(Device device, std::size_t count)
    : device_(device), events_(make_events(device, count, cudaEventDisableTiming)) {}

void Marks::set(std::size_t mark, Lane lane) const {
  EBB_CUDA_CHECK(cudaEventRecord(at(events_, mark), stream_of(device_, lane)));
}

void Marks::await(std::size_t mark, Lane lane) const {
  EBB_CUDA_CHECK(cudaStreamWaitEvent(stream_of(device_, lane), at(events_, mark), 0));
}

Clock::Clock(Device device, std::size_t marks)
    : device_(device), events_(make_events(device, marks, cudaEventDefault)) {}

// Events captured in a graph carry no time unless marked external.
void Clock::mark(std::size_t i) const {
  const cudaStream_t stream = stream_of(device_, Lane::main);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  EBB_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  EBB_CUDA_CHECK(cudaEventRecordWithFlags(
      at(events_, i), stream,
      capture == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault));
}

std::vector<double> Clock::intervals() const {
  std::vector<double> times;
  for (std::size_t i = 0; i + 1 < events_.size(); ++i) {
    float ms = 0.0f;
    EBB_CUDA_CHECK(cudaEventElapsedTime(&ms, at(events_, i), at(events_, i + 1)));
    times.push_back(static_cast<double>(ms));
  }
  return times;
}

}  // namespace ebb::cuda
