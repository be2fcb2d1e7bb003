// The connection between the GPUs of a run's ranks: NCCL moves bytes, or adds them in an order of
// its own. All calls are launched on a stream like kernels, allocate nothing once the link is made,
// and can be captured in a graph; all ranks launch the same calls in the same order.
//
// NCCL waits forever for a rank that was lost. A thread therefore watches the ranks' signs of life
// (Communicator::check_alive) and NCCL's own errors. In both cases it aborts what runs on the
// device, so that threads waiting for the stream continue and find that the link has failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/dtype.h"

namespace ebb {
class Communicator;
}

namespace ebb::cuda {

// Bytes for another rank, or from it. Several with one rank are matched in order.
struct SentBytes {
  int rank;
  const std::byte* data;
  Bytes size;
};
struct ReceivedBytes {
  int rank;
  std::byte* data;
  Bytes size;
};

// `elements` elements at `from` on every rank are summed to `to` on rank `root`; `to` is not used
// on the other ranks.
struct SummedPart {
  int root;
  const std::byte* from;
  std::byte* to;
  std::int64_t elements;
};

class RankLink {
 public:
  virtual ~RankLink() = default;
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void exchange(std::span<const SentBytes> send, std::span<const ReceivedBytes> receive,
                        void* stream) = 0;
  // all[r] becomes the bytes of rank r. `own` may be its place in `all`.
  virtual void all_gather(const std::byte* own, std::byte* all, Bytes own_size, void* stream) = 0;

  // Sums in NCCL's order, which may differ between runs. `in` may be `out`.
  virtual void all_reduce(const std::byte* in, std::byte* out, std::int64_t elements, DType dtype,
                          void* stream) = 0;
  virtual void reduce(std::span<const SummedPart> parts, DType dtype, void* stream) = 0;

  // Where a stream records the instruction whose collective it has reached, counted from 1: first
  // the address on the device, then the value there.
  virtual std::int32_t* reached() const = 0;
  virtual std::int32_t instruction_reached() const = 0;

  // Whether a rank was lost, or NCCL has failed. Results since then are worthless.
  virtual bool failed() const = 0;
  // Throws the RankError of a failed link.
  [[noreturn]] virtual void raise(std::string_view collective) const = 0;

  virtual Bytes memory() const = 0;  // of the device that NCCL took when the link was made
  virtual int version() const = 0;   // of NCCL; 22809 is 2.28.9

 protected:
  RankLink() = default;
};

// The link between the ranks of this communicator, each with its device. Programs share it: it is
// made by the first, with all ranks taking part, and ends with the last. Errors are the same on all
// ranks.
std::shared_ptr<RankLink> rank_link(const std::shared_ptr<Communicator>& communicator,
                                    Device device);

// Throws a DeviceError that says what is missing unless NCCL can be used; gives its version.
int require_nccl();

}  // namespace ebb::cuda
