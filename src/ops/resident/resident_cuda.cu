// One kernel that runs the tasks of a list, with as many blocks as the GPU has multiprocessors.
// Before a task that needs the results of others, all blocks wait for each other; meanwhile weights
// of later products are copied into shared memory. So the memory is not idle between two products,
// as it is between two kernels.
#include <algorithm>

#include "ops/cached_attention/pieces.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/resident/products.cuh"
#include "ops/resident/steps.h"

namespace ebb {
namespace {

using namespace cuda;

// --- Waiting for all blocks ---

// The number of blocks that have arrived at barriers of this launch, and of blocks that have ended.
// Launches on a device run one after another, and each leaves zeros.
__device__ unsigned arrived, ended;

__device__ void await_all() {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned ticket, now;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(ticket)
                 : "l"(&arrived)
                 : "memory");
    const unsigned all = (ticket / gridDim.x + 1) * gridDim.x;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&arrived) : "memory");
    } while (now < all);
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __syncthreads();
}

__device__ void leave() {
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&ended, 1u) != gridDim.x - 1) return;
  arrived = 0, ended = 0;
}

// --- Tasks beside products ---

// Tasks between products are functions of their own, so that they do not use up the registers of
// the stream.
template <class S>
__device__ __noinline__ void normalise(const TaskList& list, std::int32_t at, float* scratch) {
  const resident::Norm n = list.at<resident::Norm>(at);
  using T = Compute<S>;
  const RowNormForward<S> forward{static_cast<const S*>(n.x),
                                  static_cast<const S*>(n.weight),
                                  static_cast<const S*>(n.bias),
                                  static_cast<S*>(n.out),
                                  static_cast<T*>(n.means),
                                  static_cast<T*>(n.rstds),
                                  n.eps,
                                  n.means != nullptr};
  // Short rows, such as those of heads, are processed by one warp each.
  if (n.columns <= 32 * kept_elements) {
    Walk<S, 32, Access::registers, kept_elements> walk;
    walk.lane = static_cast<int>(threadIdx.x) % 32, walk.columns = n.columns;
    for (int r = static_cast<int>(blockIdx.x) * resident_warps + static_cast<int>(threadIdx.x) / 32;
         r < n.count; r += static_cast<int>(gridDim.x) * resident_warps)
      forward.row(r, walk);
  } else {
    for (int r = static_cast<int>(blockIdx.x); r < n.count; r += static_cast<int>(gridDim.x))
      normalise_row(forward, r, n.columns, scratch);
  }
}

template <class S>
__device__ __noinline__ void turn(const TaskList& list, std::int32_t at) {
  const resident::Rotary p = list.at<resident::Rotary>(at);
  for_items(static_cast<std::int64_t>(p.batches) * p.heads * p.pairs, [&](std::int64_t item) {
    const int i = static_cast<int>(item) % p.pairs, line = static_cast<int>(item) / p.pairs;
    const int b = line / p.heads, h = line % p.heads;
    const double speed =
        ::exp(static_cast<double>(i) * (-::log(p.base) / static_cast<double>(p.pairs)));
    const std::int32_t place = p.positions[b];
    double sine, cosine;
    ::sincos(static_cast<double>(place > 0 ? place : 0) * speed, &sine, &cosine);
    const float c = static_cast<float>(cosine), s = static_cast<float>(sine);
    const S* from = static_cast<const S*>(p.x) + b * p.batch_stride + h * p.head_stride + i;
    S* to = static_cast<S*>(p.out) + static_cast<std::int64_t>(line) * 2 * p.pairs + i;
    const float first = widen(from[0]), second = widen(from[p.pairs]);
    to[0] = narrow<S>(first * c - second * s);
    to[p.pairs] = narrow<S>(second * c + first * s);
  });
}

// Where a task records an index that is out of range.
__device__ FaultSlot slot_of(FaultSlot slot, std::int32_t instruction) {
  slot.instruction = instruction;
  return slot;
}

// The place of a token in the cache; none for a row without a sequence.
struct CachePlace {
  std::int64_t position, row;
  bool exists;

  __device__ CachePlace(const std::int32_t* positions, const std::int32_t* rows, int b,
                        std::int32_t tokens, std::int32_t cache_rows, const FaultSlot& fault)
      : position(positions[b]), row(rows[b]), exists(false) {
    if (position < 0) return;
    if (position >= tokens)
      fault.out_of_range(b, position, tokens);
    else if (row < 0 || row >= cache_rows)
      fault.out_of_range(b, row, cache_rows);
    else
      exists = true;
  }
};

template <class S>
__device__ void write_cache(const resident::CacheWriting& p, const FaultSlot& fault) {
  const int size = p.size + p.value_size;
  for_items(static_cast<std::int64_t>(p.batches) * p.heads * size, [&](std::int64_t item) {
    const int line = static_cast<int>(item) / size, i = static_cast<int>(item) % size;
    const int b = line / p.heads, h = line % p.heads;
    const CachePlace place(p.positions, p.rows, b, p.cache_tokens, p.cache_rows, fault);
    if (!place.exists) return;
    const std::int64_t token = (place.row * p.heads + h) * p.cache_tokens + place.position;
    if (i < p.size)
      static_cast<S*>(p.keys)[token * p.size + i] =
          static_cast<const S*>(p.k)[b * p.k_batch + h * p.k_head + i];
    else
      static_cast<S*>(p.values)[token * p.value_size + i - p.size] =
          static_cast<const S*>(p.v)[b * p.v_batch + h * p.v_head + i - p.size];
  });
}

// The number of computed pieces of a token's heads; zero between launches. The team that computes
// the last piece joins all of them.
__device__ unsigned joined[resident::most_heads];

constexpr int attention_teams = resident_threads / piece_threads;
// Floats of one team: (128 / lanes) · (2 + size), where lanes · 8 is at least the size.
constexpr int groups_floats = 1280;
// Those, and the results of one piece for its query heads, 2 + size each.
constexpr int attention_floats = groups_floats + most_queries * (2 + 256);

struct HalfBlock {
  int number, thread;
  __device__ void sync() const { team_barrier<piece_threads>(1 + number); }
};

template <class S, int queries>
__device__ __noinline__ void attend(const TaskList& list, std::int32_t at, float* scratch,
                                    const FaultSlot faults) {
  const resident::Attention p = list.at<resident::Attention>(at);
  const FaultSlot fault = slot_of(faults, p.instruction);
  const HalfBlock team{static_cast<int>(threadIdx.x) / piece_threads,
                       static_cast<int>(threadIdx.x) % piece_threads};
  const int group = p.heads / p.kv_heads, parts = (group + queries - 1) / queries;
  const int all_pieces = (p.cache_tokens + piece_keys - 1) / piece_keys;
  const int heads = p.batches * p.kv_heads * parts, record = 2 + p.value_size;
  const int workers = attention_teams * static_cast<int>(gridDim.x);
  const int lanes = lanes_of_key(p.size > p.value_size ? p.size : p.value_size, pack<S>, 1);
  float* shared = scratch + team.number * attention_floats;
  __shared__ bool last[attention_teams];

  // Neighbouring pieces of one head go to different multiprocessors.
  for (int item = team.number * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       item < heads * all_pieces; item += workers) {
    const int piece = item / heads, line = item % heads;
    const int b = line / (p.kv_heads * parts), kv_head = line / parts % p.kv_heads,
              first = line % parts * queries;
    const int count = group - first < queries ? group - first : queries;
    const int head = kv_head * group + first;
    S* out =
        static_cast<S*>(p.out) + (static_cast<std::int64_t>(b) * p.heads + head) * p.value_size;
    const CachePlace place(p.positions, p.rows, b, p.cache_tokens, p.cache_rows, fault);
    if (!place.exists) {
      if (piece == 0)
        for (int d = team.thread; d < count * p.value_size; d += piece_threads)
          out[d] = narrow<S>(0.0f);
      continue;
    }
    const VisibleKeys seen = visible_keys(place.position, p.window);
    const std::int64_t begin = static_cast<std::int64_t>(piece) * piece_keys,
                       end = begin + piece_keys < seen.end ? begin + piece_keys : seen.end;
    if (begin >= end || end <= seen.begin) continue;

    const std::int64_t line_of_cache = (place.row * p.kv_heads + kv_head) * p.cache_tokens;
    if (p.k && end == seen.end) {
      // All teams that read this token write the same values.
      S* keys =
          const_cast<S*>(static_cast<const S*>(p.keys)) + (line_of_cache + place.position) * p.size;
      S* values = const_cast<S*>(static_cast<const S*>(p.values)) +
                  (line_of_cache + place.position) * p.value_size;
      for (int d = team.thread; d < p.size; d += piece_threads)
        keys[d] = static_cast<const S*>(p.k)[b * p.k_batch + kv_head * p.k_head + d];
      for (int d = team.thread; d < p.value_size; d += piece_threads)
        values[d] = static_cast<const S*>(p.v)[b * p.v_batch + kv_head * p.v_head + d];
      team.sync();
    }
    const int first_piece = static_cast<int>(seen.begin / piece_keys),
              end_piece = static_cast<int>((seen.end + piece_keys - 1) / piece_keys);
    // The results of several pieces are joined through memory.
    const bool several = end_piece - first_piece > 1;
    const std::int64_t head_record =
        several ? static_cast<std::int64_t>(all_pieces) * record : record;
    float* partial = several ? static_cast<float*>(p.partial) +
                                   (static_cast<std::int64_t>(b) * p.heads + head) * head_record
                             : shared + groups_floats - first_piece * record;
    attend_piece<S, pack<S>, 1, queries>(
        Piece<S>{static_cast<const S*>(p.q) + b * p.batch_stride + head * p.head_stride,
                 p.head_stride, count, static_cast<const S*>(p.keys) + line_of_cache * p.size,
                 static_cast<const S*>(p.values) + line_of_cache * p.value_size, p.size,
                 p.value_size, static_cast<float>(p.scale), begin, end, seen.begin, lanes,
                 partial + piece * record, head_record},
        team, shared);

    if (several) {
      __threadfence();
      team.sync();
      if (team.thread == 0) {
        const unsigned before = atomicAdd(&joined[line], 1u);
        last[team.number] = before == static_cast<unsigned>(end_piece - first_piece - 1);
        if (last[team.number]) joined[line] = 0;
        __threadfence();
      }
      team.sync();
      if (!last[team.number]) continue;
    } else {
      team.sync();
    }
    for (int i = 0; i < count; ++i)
      join_pieces<S>(partial + i * head_record, record, first_piece, end_piece, p.value_size,
                     out + i * p.value_size, team.thread, piece_threads);
  }
}

// --- The kernel ---

template <class S>
constexpr int scratch_floats() {
  const int sums = Units<S>::teams * 2 * column_sums<S>;
  const int attention = attention_teams * attention_floats;
  return sums > attention ? sums : attention;
}

template <class S>
__global__ void __launch_bounds__(resident_threads, 1)
    resident_kernel(const __grid_constant__ TaskList list, FaultSlot faults) {
  extern __shared__ __align__(128) unsigned char memory[];
  float* scratch = reinterpret_cast<float*>(memory + ring_bytes);
  S* row = reinterpret_cast<S*>(scratch + scratch_floats<S>());
  Stream<S> stream(list, memory);
  for (std::int32_t at = 0;;) {
    const TaskHeader header = list.header(at);
    if (header.waits) await_all();
    switch (header.kind) {
      case TaskKind::product: {
        const resident::Product p = list.at<resident::Product>(at);
        if (p.loads) {
          __syncthreads();
          read_row_of<S>(p.rows, p.inner, row, scratch);
          __syncthreads();
        }
        if (p.lines)
          multiply_lines(p, stream, row);
        else
          multiply_columns(p, stream, row, scratch);
        break;
      }
      case TaskKind::norm:
        normalise<S>(list, at, scratch);
        break;
      case TaskKind::elementwise: {
        const resident::Elementwise e = list.at<resident::Elementwise>(at);
        apply_forms(e.rows, e.count, e.columns, static_cast<S*>(e.out), e.columns,
                    static_cast<int>(blockIdx.x * resident_threads + threadIdx.x),
                    static_cast<int>(gridDim.x) * resident_threads);
        break;
      }
      case TaskKind::rotary:
        turn<S>(list, at);
        break;
      case TaskKind::cache_writing: {
        const resident::CacheWriting p = list.at<resident::CacheWriting>(at);
        write_cache<S>(p, slot_of(faults, p.instruction));
        break;
      }
      case TaskKind::attention: {
        __syncthreads();  // the scratch memory of products has been read
        const resident::Attention& p = list.at<resident::Attention>(at);
        if (p.heads == p.kv_heads)
          attend<S, 1>(list, at, scratch, faults);
        else
          attend<S, most_queries>(list, at, scratch, faults);
        __syncthreads();
        break;
      }
    }
    if (header.end) break;
    at = header.next;
  }
  leave();
}

// --- The host's side ---

struct Machine {
  int multiprocessors = 0, shared = 0;

  Machine() {
    int device = 0;
    check(cudaGetDevice(&device), "resident");
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
          "resident");
    check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "resident");
  }
};

template <class S>
std::int64_t shared_bytes(std::int64_t longest) {
  return ring_bytes + scratch_floats<S>() * 4 + longest * static_cast<std::int64_t>(sizeof(S));
}

template <class S>
struct Launcher {
  const KernelArgs& args;
  Machine machine{};
  std::int64_t longest = 0;
  TaskList list{};
  std::int64_t line_workers = 0, team_workers = 0;  // units assigned, by kind of worker
  bool fresh = true;                                // no product in this launch yet

  void start() {
    if (list.bytes == 0) return;
    const std::int64_t shared = shared_bytes<S>(longest);
    const auto kernel = resident_kernel<S>;
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "resident");
    cudaLaunchAttribute together{};  // all blocks run at once, whatever else runs
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(machine.multiprocessors));
    config.blockDim = dim3(resident_threads);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared);
    config.stream = stream_of(args);
    config.attrs = &together;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, kernel, list, FaultSlot(args)), "resident");
    list.bytes = 0, list.last = list.last_product = list.first_product = -1;
    fresh = true;
  }

  template <class T>
  void add(TaskKind kind, bool waits, const T& task) {
    if (list.add(kind, waits, task)) return;
    start();
    T first = task;
    if constexpr (std::is_same_v<T, resident::Product>) first.loads = true, fresh = false;
    list.add(kind, false, first);
  }

  // Units continue with the worker after the previous product's last one, so that all workers get
  // equal numbers.
  void place(resident::Product& p) {
    const std::int64_t workers =
        (p.lines ? resident_warps : Units<S>::teams) * machine.multiprocessors;
    std::int64_t& given = p.lines ? line_workers : team_workers;
    p.first = static_cast<std::int32_t>(given % workers);
    given += p.lines ? p.columns : ceil_div(p.columns, Units<S>::unit_columns);
  }

  void operator()(std::span<const resident::Listed> tasks) {
    const resident::Product* before = nullptr;
    for (const resident::Listed& listed : tasks) {
      // What the row in shared memory holds is known only right after another product of the level.
      if (listed.waits || !std::holds_alternative<resident::Product>(listed.task)) before = nullptr;
      if (const auto* product = std::get_if<resident::Product>(&listed.task)) {
        resident::Product p = *product;
        p.loads = fresh || !before || !(before->rows == p.rows) || before->inner != p.inner;
        fresh = false;
        place(p);
        add(TaskKind::product, listed.waits, p);
        before = product;
      } else if (const auto* norm = std::get_if<resident::Norm>(&listed.task)) {
        add(TaskKind::norm, listed.waits, *norm);
      } else if (const auto* elementwise = std::get_if<resident::Elementwise>(&listed.task)) {
        add(TaskKind::elementwise, listed.waits, *elementwise);
      } else if (const auto* rotary = std::get_if<resident::Rotary>(&listed.task)) {
        add(TaskKind::rotary, listed.waits, *rotary);
      } else if (const auto* writing = std::get_if<resident::CacheWriting>(&listed.task)) {
        add(TaskKind::cache_writing, listed.waits, *writing);
      } else {
        add(TaskKind::attention, listed.waits, std::get<resident::Attention>(listed.task));
      }
    }
    start();
  }
};

template <class S>
void launch_tasks(std::span<const resident::Listed> tasks, const KernelArgs& args) {
  Launcher<S> launcher{args};
  for (const resident::Listed& listed : tasks)
    if (const auto* p = std::get_if<resident::Product>(&listed.task))
      launcher.longest = std::max<std::int64_t>(launcher.longest, p->inner);
  launcher(tasks);
}

void launch_any(std::span<const resident::Listed> tasks, DType dtype, const KernelArgs& args) {
  if (dtype == f16)
    launch_tasks<Half>(tasks, args);
  else
    launch_tasks<BFloat16>(tasks, args);
}

}  // namespace

namespace resident {

Step step(const KernelRequest& request, std::function<void(const KernelArgs&)> run) {
  return {.run = std::move(run), .dtype = request.out().dtype(), .launch = launch_any};
}

constexpr std::int64_t shared_memory = 227 * 1024;  // of a block, with compute capability 9.0
constexpr std::int64_t static_memory = 128;         // the kernel's own variables there, at most

bool device_takes_products() { return Machine().shared >= shared_memory; }

bool takes_product(std::int64_t rows, std::int64_t inner) {
  return rows == 1 && shared_bytes<BFloat16>(inner) + static_memory <= shared_memory;
}

bool takes_norm(std::int64_t rows, std::int64_t columns) {
  return rows > 0 && rows <= 4096 && columns % 8 == 0 && columns > 0 && columns <= longest_row;
}

}  // namespace resident
}  // namespace ebb
