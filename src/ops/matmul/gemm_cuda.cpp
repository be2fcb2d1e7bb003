// cuBLASLt stores matrices column by column, so it is asked for the transpose: the result's memory
// is that of a (columns, rows) matrix, and outᵀ = bᵀ · aᵀ. A factor that lies row by row is then
// taken as it is, and a bias is a number for each of the transpose's rows.
#include "ops/matmul/gemm_cuda.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/context.h"
#include "core/cuda/library.h"
#include "ebb/error.h"
#include "ebb/storage.h"
#include "ops/cuda/tuned_call.h"

namespace ebb::cuda {
namespace {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;

  CublasLt() {
    const Library library("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"});
    library.find("cublasLtCreate", create);
    library.find("cublasLtGetStatusString", status_string);
    library.find("cublasLtGetVersion", version);
    library.find("cublasLtMatmul", matmul);
    library.find("cublasLtMatmulAlgoGetHeuristic", heuristic);
    library.find("cublasLtMatmulDescCreate", desc_create);
    library.find("cublasLtMatmulDescDestroy", desc_destroy);
    library.find("cublasLtMatmulDescSetAttribute", desc_set);
    library.find("cublasLtMatrixLayoutCreate", layout_create);
    library.find("cublasLtMatrixLayoutDestroy", layout_destroy);
    library.find("cublasLtMatrixLayoutSetAttribute", layout_set);
    library.find("cublasLtMatmulPreferenceCreate", preference_create);
    library.find("cublasLtMatmulPreferenceDestroy", preference_destroy);
    library.find("cublasLtMatmulPreferenceSetAttribute", preference_set);
  }

  void check(cublasStatus_t status, const char* call) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      throw DeviceError(fmt::format("[cuda] {}: {}", call, status_string(status)));
  }
};

const CublasLt& lt() {
  static const CublasLt functions;
  return functions;
}

cublasLtHandle_t handle(Device device) {
  static auto& handles = *new std::map<int, cublasLtHandle_t>;  // kept: see Context
  static std::mutex mutex;
  use(device);
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& own = handles[device.index];
  if (!own) lt().check(lt().create(&own), "cublasLtCreate");
  return own;
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDA_R_64F;
    case DType::float16:
      return CUDA_R_16F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cudaDataType_t data_type(Fp8 format) {
  return format == Fp8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

// One of cuBLASLt's descriptions, destroyed with its owner.
template <class T>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_) (void)destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  void own(T handle, cublasStatus_t (*destroy)(T)) { handle_ = handle, destroy_ = destroy; }
  T get() const { return handle_; }

 private:
  T handle_ = nullptr;
  cublasStatus_t (*destroy_)(T) = nullptr;
};

constexpr const char* library = "cuBLASLt";

// How a tuning names the product: all numbers that an algorithm is chosen by.
std::string call_of(const GemmSpec& s) {
  const auto e5m2 = [&](Fp8 Fp8Factors::*factor) {
    return s.codes && (*s.codes).*factor == Fp8::e5m2;
  };
  return fmt::format(
      "{}x{}x{} lead {} {} {}{}{} {} -> {} batch {} {} {} {} align {} {} {}{}{}{}{}{}", s.a.rows,
      s.a.columns, s.b.columns, s.a.leading(), s.b.leading(), s.out_lead,
      s.a.transposed() ? " a'" : "", s.b.transposed() ? " b'" : "", name(s.dtype), name(s.out),
      s.batches, s.batch_a, s.batch_b, s.batch_out, s.align_a, s.align_b, s.align_out,
      s.bias ? " bias" : "", s.accumulate ? " accumulate" : "", s.gelu_grad ? " gelu_grad" : "",
      s.tf32                 ? " tf32"
      : e5m2(&Fp8Factors::a) ? " e5m2 a"
      : e5m2(&Fp8Factors::b) ? " e5m2 b"
                             : "",
      s.codes ? " fp8" : "");
}

class Event {
 public:
  Event() { EBB_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { EBB_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  float milliseconds_since(const Event& earlier) const {
    float result = 0.0f;
    EBB_CUDA_CHECK(cudaEventSynchronize(event_));
    EBB_CUDA_CHECK(cudaEventElapsedTime(&result, earlier.event_, event_));
    return result;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

std::string library_version() { return std::to_string(lt().version()); }

}  // namespace

// The library refuses workspaces at other addresses; buffers of the arena are less aligned.
constexpr std::int64_t workspace_alignment = 256;

struct Gemm::Bound {
  GemmSpec spec;
  cublasLtHandle_t handle = nullptr;
  Owned<cublasLtMatmulDesc_t> desc;
  Owned<cublasLtMatrixLayout_t> a, b, out;
  cublasLtMatmulHeuristicResult_t algorithm{};

  Bound(Device device, const GemmSpec& s) : spec(s), handle(cuda::handle(device)) {
    const bool wide = s.dtype == f64;
    cublasLtMatmulDesc_t d = nullptr;
    const cublasComputeType_t arithmetic = wide     ? CUBLAS_COMPUTE_64F
                                           : s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                    : CUBLAS_COMPUTE_32F;
    lt().check(lt().desc_create(&d, arithmetic, wide ? CUDA_R_64F : CUDA_R_32F),
               "cublasLtMatmulDescCreate");
    desc.own(d, lt().desc_destroy);
    // The first factor there is b, the second a.
    set(CUBLASLT_MATMUL_DESC_TRANSA, s.b.transposed() ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, s.a.transposed() ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (s.gelu_grad) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.out_lead);
      if (s.batches > 1) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, s.batch_out);
    }
    if (s.codes)
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(s.codes->fast_sums() ? 1 : 0));
    factor(a, s.a, s.codes ? data_type(s.codes->a) : data_type(s.dtype), s.batch_a);
    factor(b, s.b, s.codes ? data_type(s.codes->b) : data_type(s.dtype), s.batch_b);
    layout(out, data_type(s.out), s.b.columns, s.a.rows, s.out_lead, s.batch_out);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    lt().check(lt().desc_set(desc.get(), attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }

  void factor(Owned<cublasLtMatrixLayout_t>& to, const MatrixLayout& m, cudaDataType_t type,
              std::int64_t batch) const {
    layout(to, type, m.transposed() ? m.rows : m.columns, m.transposed() ? m.columns : m.rows,
           m.leading(), batch);
  }
  void layout(Owned<cublasLtMatrixLayout_t>& to, cudaDataType_t type, std::int64_t rows,
              std::int64_t columns, std::int64_t lead, std::int64_t batch) const {
    cublasLtMatrixLayout_t l = nullptr;
    lt().check(lt().layout_create(&l, type, static_cast<std::uint64_t>(rows),
                                  static_cast<std::uint64_t>(columns), lead),
               "cublasLtMatrixLayoutCreate");
    to.own(l, lt().layout_destroy);
    if (spec.batches == 1) return;
    const std::int32_t count = static_cast<std::int32_t>(spec.batches);
    lt().check(lt().layout_set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
               "cublasLtMatrixLayoutSetAttribute");
    lt().check(
        lt().layout_set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch, sizeof batch),
        "cublasLtMatrixLayoutSetAttribute");
  }

  // The library's algorithms for this product, asked for once in a process.
  const std::vector<cublasLtMatmulHeuristicResult_t>& offered(const std::string& call) const {
    static auto& known =
        *new std::map<std::pair<cublasLtHandle_t, std::string>,
                      std::vector<cublasLtMatmulHeuristicResult_t>>;  // kept: see Context
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const auto [found, is_new] = known.try_emplace({handle, call});
    if (is_new) found->second = heuristic();
    return found->second;
  }

  std::vector<cublasLtMatmulHeuristicResult_t> heuristic() const {
    cublasLtMatmulPreference_t p = nullptr;
    lt().check(lt().preference_create(&p), "cublasLtMatmulPreferenceCreate");
    Owned<cublasLtMatmulPreference_t> preference;
    preference.own(p, lt().preference_destroy);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      lt().check(lt().preference_set(p, attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
           static_cast<std::uint64_t>(gemm_workspace_limit.count));
    // Parts of a sum are added in the type they were computed in, in one order.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(spec.align_b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(spec.align_a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(spec.align_out));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(spec.align_out));
    std::vector<cublasLtMatmulHeuristicResult_t> choices(16);
    int found = 0;
    const cublasStatus_t status =
        lt().heuristic(handle, desc.get(), b.get(), a.get(), out.get(), out.get(), p,
                       static_cast<int>(choices.size()), choices.data(), &found);
    choices.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(found) : 0);
    return choices;
  }

  // The algorithm to use among those that the library offers: the fastest, where time can be
  // gained.
  TunedCall tune(Device device) const {
    const std::vector<cublasLtMatmulHeuristicResult_t> choices = heuristic();
    if (choices.empty()) return {.choice = -1, .workspace = {}};
    const double flops = 2.0 * static_cast<double>(spec.batches * spec.a.rows) *
                         static_cast<double>(spec.a.columns * spec.b.columns);
    Timed fastest;
    if (flops >= 1e9) fastest = measure(device, choices).value_or(Timed{});
    return {static_cast<int>(fastest.choice), workspace_for(choices[fastest.choice]), fastest.ms};
  }

  static Bytes workspace_for(const cublasLtMatmulHeuristicResult_t& algorithm) {
    const std::int64_t size = static_cast<std::int64_t>(algorithm.workspaceSize);
    return {size > 0 ? size + workspace_alignment : 0};
  }

  struct Timed {
    std::size_t choice = 0;
    float ms = 0.0f;
  };
  // Nothing when the device has no room for the matrices beside what is there.
  std::optional<Timed> measure(Device device,
                               const std::vector<cublasLtMatmulHeuristicResult_t>& choices) const {
    const auto bytes = [&](const MatrixLayout& m, DType dtype, std::int64_t batch) {
      const std::int64_t one = m.leading() * (m.transposed() ? m.columns : m.rows);
      return (one + (spec.batches - 1) * batch) * size_of(dtype);
    };
    const MatrixLayout result{spec.a.rows, spec.b.columns, spec.out_lead, 1};
    constexpr Bytes swept = 128_MiB;  // more than a second-level cache holds
    std::shared_ptr<Storage> x, y, z, added, space, sweep;
    try {
      x = Storage::allocate(device, bytes(spec.a, spec.dtype, spec.batch_a));
      y = Storage::allocate(device, bytes(spec.b, spec.dtype, spec.batch_b));
      z = Storage::allocate(device, bytes(result, spec.out, spec.batch_out));
      added = spec.accumulate ? Storage::allocate(device, z->size()) : z;
      space = Storage::allocate(device, gemm_workspace_limit + Bytes{workspace_alignment});
      sweep = Storage::allocate(device, swept);
    } catch (const MemoryError&) {
      return {};
    }
    const cudaStream_t stream = use(device).stream;
    fill(*x, spec.dtype, spec.codes ? spec.codes->a : Fp8::e4m3);
    fill(*y, spec.dtype, spec.codes ? spec.codes->b : Fp8::e4m3);
    if (spec.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, z->data());
    if (spec.gelu_grad) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, z->data());
    Event begin, end;
    Timed fastest;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      float best = std::numeric_limits<float>::max();
      for (int run = 0; run < 10; ++run) {
        // In a step the matrices come from memory.
        EBB_CUDA_CHECK(
            cudaMemsetAsync(sweep->data(), 0, static_cast<std::size_t>(swept.count), stream));
        begin.record(stream);
        if (matmul(choices[i], x->data(), y->data(), added->data(), z->data(),
                   aligned(space->data()), stream) != CUBLAS_STATUS_SUCCESS)
          break;
        end.record(stream);
        if (run > 0) best = std::min(best, end.milliseconds_since(begin));
      }
      // The first, the library's own choice, is only left for something clearly better.
      if (i == 0 || best < (fastest.choice == 0 ? 0.97f : 1.0f) * fastest.ms) fastest = {i, best};
    }
    if (fastest.ms == std::numeric_limits<float>::max()) return {};  // none could run
    return fastest;
  }

  // Numbers from -1 to 1; uint8 are their codes in `format`. Products of zeros draw little power,
  // and tell nothing of the speed at which others run.
  static void fill(Storage& storage, DType dtype, Fp8 format) {
    const std::int64_t width = size_of(dtype).count, count = std::int64_t{1} << 20;
    std::vector<std::byte> numbers(static_cast<std::size_t>(count * width));
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
      const auto put = [&](auto number) {
        std::memcpy(numbers.data() + i * width, &number, sizeof number);
      };
      if (dtype == u8)
        put(fp8_encode(format, value));
      else if (dtype == bf16)
        put(BFloat16(value));
      else if (dtype == f16)
        put(Half(value));
      else if (dtype == f64)
        put(static_cast<double>(value));
      else
        put(value);
    }
    const Bytes size = storage.size(), most{static_cast<std::int64_t>(numbers.size())};
    for (Bytes at{}; at < size; at += most)
      write(storage.device(), storage.data() + at.count, numbers.data(), std::min(most, size - at));
  }

  static void* aligned(std::byte* workspace) {
    void* at = workspace;
    std::size_t space =
        static_cast<std::size_t>((gemm_workspace_limit + Bytes{workspace_alignment}).count);
    return std::align(workspace_alignment, space - workspace_alignment, at, space);
  }

  // x and y are a and b; `added` is the matrix that the product is added to, if it is.
  cublasStatus_t matmul(const cublasLtMatmulHeuristicResult_t& how, const void* x, const void* y,
                        const void* added, void* to, void* workspace, cudaStream_t stream) const {
    const float alpha = 1.0f, beta = spec.accumulate ? 1.0f : 0.0f;
    const double wide_alpha = 1.0, wide_beta = spec.accumulate ? 1.0 : 0.0;
    const bool wide = spec.dtype == f64;
    return lt().matmul(handle, desc.get(), wide ? static_cast<const void*>(&wide_alpha) : &alpha, y,
                       b.get(), x, a.get(), wide ? static_cast<const void*>(&wide_beta) : &beta,
                       added, out.get(), to, out.get(), &how.algo, workspace, how.workspaceSize,
                       stream);
  }
};

bool Gemm::bind(const Target& target, const GemmSpec& spec) {
  const std::string call = call_of(spec);
  workspace_ = gemm_workspace_limit + Bytes{workspace_alignment};
  const TunedCall* known = tuned_call(target, library, call, library_version, [&] {
    return Bound(target.device, spec).tune(target.device);
  });
  if (known) {
    if (known->choice < 0) return false;
    workspace_ = known->workspace, ms_ = known->ms;
  }
  if (target.purpose != Purpose::run) return true;
  auto bound = std::make_shared<Bound>(target.device, spec);
  const std::vector<cublasLtMatmulHeuristicResult_t>& choices = bound->offered(call);
  if (choices.empty()) return false;
  const std::size_t choice = known ? static_cast<std::size_t>(known->choice) : 0;
  if (known)
    require_tuned(target, library, library_version(),
                  choice < choices.size() && Bound::workspace_for(choices[choice]) <= workspace_);
  bound->algorithm = choices[choice];
  bound_ = std::move(bound);
  return true;
}

Gemm::Gemm(const Target& target, const GemmSpec& spec) {
  if (!bind(target, spec))
    throw DeviceError(fmt::format(
        "[cuda] cuBLASLt has no algorithm for a product of {} x {} by {} x {} in {}", spec.a.rows,
        spec.a.columns, spec.b.rows, spec.b.columns, spec.codes ? "fp8" : name(spec.dtype)));
}

std::optional<Gemm> Gemm::find(const Target& target, const GemmSpec& spec) {
  Gemm gemm;
  return gemm.bind(target, spec) ? std::optional(gemm) : std::nullopt;
}

void Gemm::run(const KernelArgs& args, const void* a, const void* b, void* out,
               std::byte* workspace, const Beside& beside) const {
  const Bound& g = *bound_;
  // The library looks at the address even when it needs no space.
  void* scratch = workspace_.count > 0 ? workspace : nullptr;
  std::size_t space = static_cast<std::size_t>(workspace_.count);
  if (space > 0) std::align(workspace_alignment, space - workspace_alignment, scratch, space);
  if (g.spec.bias) g.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, beside.bias);
  if (g.spec.gelu_grad) g.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside.other);
  if (g.spec.codes) {  // the first factor there is b
    g.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(beside.step_b));
    g.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(beside.step_a));
  }
  const void* added = g.spec.accumulate && beside.other ? beside.other : out;
  lt().check(
      g.matmul(g.algorithm, a, b, added, out, scratch, static_cast<cudaStream_t>(args.stream)),
      "cublasLtMatmul");
}

}  // namespace ebb::cuda
