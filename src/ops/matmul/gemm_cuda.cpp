// cuBLASLt stores matrices column by column, so it is asked for the transpose: the result's memory
// is that of a (columns, rows) matrix, and outᵀ = bᵀ · aᵀ. A factor that lies row by row is then
// taken as it is, and a bias is a number for each of the transpose's rows.
#include "ops/matmul/gemm_cuda.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "core/cuda/context.h"
#include "core/cuda/library.h"
#include "ebb/error.h"

namespace ebb::cuda {
namespace {

struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetStatusString) status_string;
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

auto key_of(int device, const GemmSpec& s) {
  return std::tuple(device, s.a.rows, s.a.columns, s.b.columns, s.a.transposed(), s.b.transposed(),
                    s.a.leading(), s.b.leading(), s.dtype, s.out, s.out_lead, s.batches, s.batch_a,
                    s.batch_b, s.batch_out, s.bias, s.accumulate, s.gelu_grad,
                    std::tuple(s.align_a, s.align_b, s.align_out));
}

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
    lt().check(lt().desc_create(&d, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                wide ? CUDA_R_64F : CUDA_R_32F),
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
    factor(a, s.a, s.batch_a);
    factor(b, s.b, s.batch_b);
    layout(out, s.out, s.b.columns, s.a.rows, s.out_lead, s.batch_out);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    lt().check(lt().desc_set(desc.get(), attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }

  void factor(Owned<cublasLtMatrixLayout_t>& to, const MatrixLayout& m, std::int64_t batch) const {
    layout(to, spec.dtype, m.transposed() ? m.rows : m.columns, m.transposed() ? m.columns : m.rows,
           m.leading(), batch);
  }
  void layout(Owned<cublasLtMatrixLayout_t>& to, DType dtype, std::int64_t rows,
              std::int64_t columns, std::int64_t lead, std::int64_t batch) const {
    cublasLtMatrixLayout_t l = nullptr;
    lt().check(lt().layout_create(&l, data_type(dtype), static_cast<std::uint64_t>(rows),
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

  // The heuristic's first choice, remembered for products of the same shape; false when there is
  // none.
  bool choose(Device device) {
    static auto& known = *new std::map<decltype(key_of(0, spec)), cublasLtMatmulHeuristicResult_t>;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const auto key = key_of(device.index, spec);
    if (const auto found = known.find(key); found != known.end()) {
      algorithm = found->second;
      return true;
    }
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
    int found = 0;
    const cublasStatus_t status = lt().heuristic(handle, desc.get(), b.get(), a.get(), out.get(),
                                                 out.get(), p, 1, &algorithm, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) return false;
    known[key] = algorithm;
    return true;
  }
};

bool Gemm::bind(Device device, const GemmSpec& spec) {
  workspace_ = gemm_workspace_limit + Bytes{workspace_alignment};
  if (device.index >= device_count()) return true;
  auto bound = std::make_shared<Bound>(device, spec);
  if (!bound->choose(device)) return false;
  const std::int64_t size = static_cast<std::int64_t>(bound->algorithm.workspaceSize);
  workspace_ = {size > 0 ? size + workspace_alignment : 0};
  bound_ = std::move(bound);
  return true;
}

Gemm::Gemm(Device device, const GemmSpec& spec) {
  if (!bind(device, spec))
    throw DeviceError(
        fmt::format("[cuda] cuBLASLt has no algorithm for a product of {} x {} by {} x {} in {}",
                    spec.a.rows, spec.a.columns, spec.b.rows, spec.b.columns, name(spec.dtype)));
}

std::optional<Gemm> Gemm::find(Device device, const GemmSpec& spec) {
  Gemm gemm;
  return gemm.bind(device, spec) ? std::optional(gemm) : std::nullopt;
}

void Gemm::run(const KernelArgs& args, const void* a, const void* b, void* out,
               std::byte* workspace, const void* bias, const void* other) const {
  const Bound& g = *bound_;
  // The library looks at the address even when it needs no space.
  void* scratch = workspace_.count > 0 ? workspace : nullptr;
  std::size_t space = static_cast<std::size_t>(workspace_.count);
  if (space > 0) std::align(workspace_alignment, space - workspace_alignment, scratch, space);
  if (g.spec.bias) g.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (g.spec.gelu_grad) g.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, other);
  const void* added = g.spec.accumulate && other ? other : out;
  const float alpha = 1.0f, beta = g.spec.accumulate ? 1.0f : 0.0f;
  const double wide_alpha = 1.0, wide_beta = g.spec.accumulate ? 1.0 : 0.0;
  const bool wide = g.spec.dtype == f64;
  lt().check(
      lt().matmul(g.handle, g.desc.get(), wide ? static_cast<const void*>(&wide_alpha) : &alpha, b,
                  g.b.get(), a, g.a.get(), wide ? static_cast<const void*>(&wide_beta) : &beta,
                  added, g.out.get(), out, g.out.get(), &g.algorithm.algo, scratch,
                  g.algorithm.workspaceSize, static_cast<cudaStream_t>(args.stream)),
      "cublasLtMatmul");
}

}  // namespace ebb::cuda
