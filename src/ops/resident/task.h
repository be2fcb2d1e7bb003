// Tasks of one resident kernel: the ops of one sequence's next token in generation, which a single
// kernel runs one after another without leaving the GPU (resident_cuda.cu). They are plain data,
// passed to the kernel as its argument.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "ebb/op.h"
#include "ops/cache_write/cache_write.h"
#include "ops/cached_attention/cached_attention.h"

namespace ebb::resident {

// The function that is applied to rows while they are read.
enum class Form : std::uint8_t { plain, layer_norm, rms_norm, gelu, gelu_tanh, silu, relu };

// Rows of x, or a function of them. Each block computes the rows that its product reads itself, so
// that no block waits for another.
struct Rows {
  const void* x = nullptr;
  const void* second = nullptr;                   // a factor of the function's result, or null
  const void *weight = nullptr, *bias = nullptr;  // of a norm; each may be null
  double eps = 0.0;                               // of a norm
  std::int32_t stride = 0, second_stride = 0;     // elements from one row to the next
  Form form = Form::plain;

  bool operator==(const Rows&) const = default;
};

// out (columns) = a row (inner) · matrix (inner, columns) [+ bias] [+ other].
struct Product {
  Rows rows;
  const void* matrix = nullptr;
  const void *bias = nullptr, *other = nullptr;  // each may be null
  void* out = nullptr;
  std::int64_t stride = 0;  // of the matrix: elements from one line or row of it to the next
  std::int32_t inner = 0, columns = 0;
  bool lines = false;  // the inner axis of the matrix is in one piece, not its columns
  // Set by the list:
  bool loads = true;       // false: the rows are those of the product before
  std::int32_t first = 0;  // the worker that takes the first unit
  std::int32_t next = -1;  // where the next product is in the list, or -1
};

struct Norm {
  const void *x = nullptr, *weight = nullptr, *bias = nullptr;
  void* out = nullptr;
  void *means = nullptr, *rstds = nullptr;  // means is null without centring
  double eps = 0.0;
  std::int32_t count = 0, columns = 0;
};

// One token of each sequence.
struct Rotary {
  const void* x = nullptr;
  const std::int32_t* positions = nullptr;
  void* out = nullptr;
  double base = 0.0;
  std::int64_t batch_stride = 0, head_stride = 0;
  std::int32_t batches = 0, heads = 0, pairs = 0;
};

struct CacheWriting {
  const void *k = nullptr, *v = nullptr;
  const std::int32_t *positions = nullptr, *rows = nullptr;
  void *keys = nullptr, *values = nullptr;
  std::int64_t k_batch = 0, k_head = 0, v_batch = 0, v_head = 0;  // strides
  std::int32_t batches = 0, heads = 0, size = 0, value_size = 0, cache_rows = 0, cache_tokens = 0;
  std::int32_t instruction = 0;
};

// One token of each sequence. If `k` is set, new keys and values are written to the cache first.
struct Attention {
  const void *q = nullptr, *keys = nullptr, *values = nullptr;
  const std::int32_t *positions = nullptr, *rows = nullptr;
  void *partial = nullptr, *out = nullptr;
  const void *k = nullptr, *v = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0;                 // of q
  std::int64_t k_batch = 0, k_head = 0, v_batch = 0, v_head = 0;  // strides
  double scale = 1.0;
  std::int32_t batches = 0, heads = 0, kv_heads = 0, size = 0, value_size = 0;
  std::int32_t cache_rows = 0, cache_tokens = 0, window = 0;
  std::int32_t instruction = 0;
};

// A function of rows, written to memory.
struct Elementwise {
  Rows rows;
  void* out = nullptr;  // (count, columns)
  std::int32_t count = 0, columns = 0;
};

using Task = std::variant<Product, Norm, Elementwise, Rotary, CacheWriting, Attention>;

// Tasks in the order in which they run. Before a task with `waits` every block waits for all
// others.
struct Listed {
  Task task;
  bool waits = false;
};

// Launches one kernel for the tasks, or several if they do not fit into one kernel's argument.
using Launch = void (*)(std::span<const Listed> tasks, DType dtype, const KernelArgs& args);

// The function of a kernel whose call can also be a task of a resident kernel. `task` describes the
// call, and is empty if the call's operands do not allow it.
struct Step {
  std::function<void(const KernelArgs&)> run;
  DType dtype = f32;
  Launch launch = nullptr;
  std::function<std::optional<Task>(const KernelArgs&)> task = {};

  void operator()(const KernelArgs& args) const { run(args); }
};

}  // namespace ebb::resident
