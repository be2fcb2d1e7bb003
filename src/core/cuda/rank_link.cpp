#include "core/cuda/rank_link.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/context.h"
#include "core/cuda/nccl.h"
#include "core/gpu_of_rank.h"
#include "ebb/communicator.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds look_every{100};
// How long ranks wait for each other to enter NCCL, which they do together.
constexpr seconds patience_at_start{120};
// How long to wait for NCCL to end, and for other ranks to report which one was lost. After an
// abort NCCL may take seconds longer, but nothing waits for it then, because the device is already
// free.
constexpr seconds patience_at_end{5};
constexpr milliseconds patience_after_abort{200};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return ncclFloat64;
    case DType::float32:
      return ncclFloat32;
    case DType::float16:
      return ncclFloat16;
    case DType::bfloat16:
      return ncclBfloat16;
    default:
      throw DTypeError(fmt::format("[nccl] cannot add tensors of {}", name(dtype)));
  }
}

std::size_t count(Bytes size) { return static_cast<std::size_t>(size.count); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

std::string first_line(const char* file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

GpuOfRank own_gpu(Device device) {
  GpuOfRank gpu;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  gpu.host = name.data();
  gpu.machine = first_line("/proc/sys/kernel/random/boot_id");
  if (gpu.machine.empty()) gpu.machine = gpu.host;
  gpu.device = to_string(device);
  if (const char* id = std::getenv("NCCL_HOSTID")) gpu.nccl_host = id;
  try {
    use(device);
    std::array<char, 32> bus{};
    EBB_CUDA_CHECK(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index));
    gpu.bus = bus.data();
    gpu.nccl_version = require_nccl();
  } catch (const Error& error) {  // sent to all ranks
    gpu.problem = error.what();
  }
  return gpu;
}

// State that the link and its thread share. The thread may outlive the link if NCCL does not
// return.
struct Shared {
  Shared(std::shared_ptr<Communicator> c, Device d) : communicator(std::move(c)), device(d) {}

  const std::shared_ptr<Communicator> communicator;
  const Device device;
  ncclComm_t comm = nullptr;
  std::atomic<bool> failed{false};

  std::mutex mutex;
  std::condition_variable changed;
  bool made = false, stopping = false, ended = false;
  std::string reason;  // the error that NCCL reported

  void fail(std::string why) {
    const std::lock_guard lock(mutex);
    if (!failed) reason = std::move(why);
    failed = true;
    changed.notify_all();
  }

  std::string text_of(ncclResult_t result) const {
    const char* detail = nccl().last_error(nullptr);
    return fmt::format("{}{}{}", nccl().error_text(result), detail && *detail ? ": " : "",
                       detail ? detail : "");
  }
};

// Makes NCCL's communicator, watches it, and ends it. These calls may not return, so they run on a
// thread that nothing has to wait for.
void attend(const std::shared_ptr<Shared>& shared, const ncclUniqueId& id) {
  (void)cudaSetDevice(shared->device.index);
  ncclComm_t comm = nullptr;
  const ncclResult_t made =
      nccl().init_rank(&comm, shared->communicator->size(), id, shared->communicator->rank());
  if (made != ncclSuccess) shared->fail("ncclCommInitRank: " + shared->text_of(made));
  {
    const std::lock_guard lock(shared->mutex);
    shared->comm = comm, shared->made = true;
    shared->changed.notify_all();
  }
  const auto look = [&] {
    try {
      shared->communicator->check_alive("an exchange between GPUs");
    } catch (const RankError& error) {
      shared->fail(error.what());
    }
    ncclResult_t state = ncclSuccess;
    if (comm && nccl().async_error(comm, &state) == ncclSuccess && state != ncclSuccess &&
        state != ncclInProgress)
      shared->fail(shared->text_of(state));
  };
  for (bool stopping = false; !stopping && !shared->failed;) {
    {
      std::unique_lock lock(shared->mutex);
      shared->changed.wait_for(lock, look_every,
                               [&] { return shared->stopping || shared->failed.load(); });
      stopping = shared->stopping;
    }
    look();
  }
  // Aborting also ends what runs on the device. It returns only when all graphs with NCCL's calls
  // are gone, so nothing that keeps such a graph may wait for it.
  if (comm) (void)(shared->failed ? nccl().abort(comm) : nccl().destroy(comm));
  const std::lock_guard lock(shared->mutex);
  shared->ended = true;
  shared->changed.notify_all();
}

// A number that the device writes and the host reads while the device is busy.
class Mapped {
 public:
  Mapped() {
    EBB_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&host_), sizeof *host_,
                                 cudaHostAllocMapped | cudaHostAllocPortable));
    *host_ = 0;
    EBB_CUDA_CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_), host_, 0));
  }
  ~Mapped() { (void)cudaFreeHost(host_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  std::int32_t value() const { return *static_cast<volatile std::int32_t*>(host_); }
  std::int32_t* on_device() const { return device_; }

 private:
  std::int32_t *host_ = nullptr, *device_ = nullptr;
};

class NcclLink final : public RankLink {
 public:
  NcclLink(const std::shared_ptr<Communicator>& communicator, Device device)
      : shared_(std::make_shared<Shared>(communicator, device)) {
    const Bytes before = memory_info(device).free;
    ncclUniqueId id = {};
    if (rank() == 0) {
      const ncclResult_t result = nccl().get_unique_id(&id);
      if (result != ncclSuccess) throw RankError(0, "ncclGetUniqueId: " + shared_->text_of(result));
    }
    communicator->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0, "NCCL's id");
    std::thread([shared = shared_, id] { attend(shared, id); }).detach();
    try {
      await_start();
      connect();
    } catch (...) {
      end();
      throw;
    }
    memory_ = std::max(Bytes{}, before - memory_info(device).free);
  }
  ~NcclLink() override { end(); }

  int rank() const override { return shared_->communicator->rank(); }
  int size() const override { return shared_->communicator->size(); }

  void exchange(std::span<const SentBytes> send, std::span<const ReceivedBytes> receive,
                void* stream) override {
    const Group group(*this);
    for (const SentBytes& s : send)
      if (s.size.count > 0)
        check(
            nccl().send(s.data, count(s.size), ncclInt8, s.rank, shared_->comm, stream_of(stream)),
            "ncclSend");
    for (const ReceivedBytes& r : receive)
      if (r.size.count > 0)
        check(nccl().receive(r.data, count(r.size), ncclInt8, r.rank, shared_->comm,
                             stream_of(stream)),
              "ncclRecv");
    group.end();
  }

  void all_gather(const std::byte* own, std::byte* all, Bytes own_size, void* stream) override {
    check(nccl().all_gather(own, all, count(own_size), ncclInt8, shared_->comm, stream_of(stream)),
          "ncclAllGather");
  }

  void all_reduce(const std::byte* in, std::byte* out, std::int64_t elements, DType dtype,
                  void* stream) override {
    check(nccl().all_reduce(in, out, static_cast<std::size_t>(elements), type_of(dtype), ncclSum,
                            shared_->comm, stream_of(stream)),
          "ncclAllReduce");
  }

  void reduce(std::span<const SummedPart> parts, DType dtype, void* stream) override {
    const Group group(*this);
    for (const SummedPart& part : parts)
      if (part.elements > 0)
        check(nccl().reduce(part.from, part.to, static_cast<std::size_t>(part.elements),
                            type_of(dtype), ncclSum, part.root, shared_->comm, stream_of(stream)),
              "ncclReduce");
    group.end();
  }

  std::int32_t* reached() const override { return reached_.on_device(); }
  std::int32_t instruction_reached() const override { return reached_.value(); }
  bool failed() const override { return shared_->failed; }
  Bytes memory() const override { return memory_; }
  int version() const override { return nccl().version; }

  void raise(std::string_view collective) const override {
    // NCCL may notice a connection that has closed before the rank's signs of life do.
    for (const auto until = Clock::now() + patience_at_end; Clock::now() < until;) {
      shared_->communicator->check_alive(collective);
      std::this_thread::sleep_for(look_every);
    }
    const std::lock_guard lock(shared_->mutex);
    throw RankError(rank(), fmt::format("NCCL failed on rank {} in {}: {}", rank(), collective,
                                        shared_->reason));
  }

 private:
  // The calls of a group are started together. A group is ended even if one of its calls fails.
  class Group {
   public:
    explicit Group(NcclLink& link) : link_(link) {
      link_.check(nccl().group_start(), "ncclGroupStart");
    }
    ~Group() {
      if (open_) (void)nccl().group_end();
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    void end() const {
      open_ = false;
      link_.check(nccl().group_end(), "ncclGroupEnd");
    }

   private:
    NcclLink& link_;
    mutable bool open_ = true;
  };

  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    const std::string text = fmt::format("{}: {}", call, shared_->text_of(result));
    shared_->fail(text);
    throw DeviceError("[nccl] " + text);
  }

  void await_start() const {
    constexpr std::string_view name = "the start of NCCL";
    const auto deadline = Clock::now() + patience_at_start;
    for (;;) {
      {
        std::unique_lock lock(shared_->mutex);
        if (shared_->changed.wait_for(lock, look_every, [&] { return shared_->made; })) break;
      }
      shared_->communicator->check_alive(name);
      if (Clock::now() > deadline)
        throw RankError(rank(), fmt::format("{}: the ranks have not met within {} s", name,
                                            patience_at_start.count()));
    }
    if (failed()) raise(name);
  }

  // Makes one exchange between all ranks, because NCCL connects them at the first exchange and
  // allocates memory for it.
  void connect() {
    std::byte* bytes = nullptr;
    const std::size_t own = static_cast<std::size_t>(size());
    EBB_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&bytes), 2 * own));
    std::vector<SentBytes> send;
    std::vector<ReceivedBytes> receive;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      send.push_back({r, bytes, 1_B});
      receive.push_back({r, bytes + own + r, 1_B});
    }
    const cudaStream_t stream = use(shared_->device).stream;
    std::exception_ptr error;
    try {
      exchange(send, receive, stream);
      EBB_CUDA_CHECK(cudaStreamSynchronize(stream));
    } catch (const Error&) {
      error = std::current_exception();
    }
    (void)cudaFree(bytes);
    if (failed()) raise("the start of NCCL");
    if (error) std::rethrow_exception(error);
  }

  void end() const {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, failed() ? patience_after_abort : milliseconds(patience_at_end),
                              [&] { return shared_->ended || !shared_->made; });
  }

  const std::shared_ptr<Shared> shared_;
  const Mapped reached_;
  Bytes memory_;
};

}  // namespace

std::shared_ptr<RankLink> rank_link(const std::shared_ptr<Communicator>& communicator,
                                    Device device) {
  // One link for each communicator, while a program uses it.
  struct Known {
    std::weak_ptr<Communicator> communicator;
    Device device;
    std::weak_ptr<RankLink> link;
  };
  static std::mutex mutex;
  static std::vector<Known> all;
  {
    const std::lock_guard lock(mutex);
    std::erase_if(all, [](const Known& known) { return known.link.expired(); });
    for (const Known& known : all)
      if (known.communicator.lock() == communicator && known.device == device)
        return known.link.lock();
  }
  if (communicator->transport() == "threads")
    throw DeviceError(
        "[nccl] NCCL connects ranks that are processes (ebb launch, mpirun, srun); ranks that are "
        "threads of one process run on the CPU alone");
  std::vector<GpuOfRank> gpus;
  for (const std::string& text :
       communicator->all_gather(text_of(own_gpu(device)), "the ranks' GPUs"))
    gpus.push_back(gpu_of_rank(text));
  require_gpus_for_all(gpus);
  const auto link = std::make_shared<NcclLink>(communicator, device);
  const std::lock_guard lock(mutex);
  all.push_back({communicator, device, link});
  return link;
}

}  // namespace ebb::cuda
