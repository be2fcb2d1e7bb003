// The functions that build graphs. Each adds nodes and computes nothing. Axes may be negative.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "ebb/image_layout.h"
#include "ebb/random.h"
#include "ebb/tensor.h"

namespace ebb {

// --- Making tensors ---

// The dtype must hold the value: 0.5 is an error for integers, 300 for uint8, and 1e6 for float16.
Tensor full(const Shape& shape, double value, DType dtype = f32, Device device = device::cpu);
Tensor zeros(const Shape& shape, DType dtype = f32, Device device = device::cpu);
Tensor ones(const Shape& shape, DType dtype = f32, Device device = device::cpu);
Tensor zeros_like(const Tensor& x);
Tensor full_like(const Tensor& x, double value);
Tensor scalar_like(const Tensor& x, double value);  // of shape (), with x's dtype and device
Tensor arange(std::int64_t count, DType dtype = i64,
              Device device = device::cpu);  // 0, 1, ..., count - 1

// Philox numbers, keyed by seed, step and `key`.
Tensor random_uniform(const Shape& shape, double low, double high, DType dtype = f32,
                      Device device = device::cpu, std::optional<RandomKey> key = {});
Tensor random_normal(const Shape& shape, double mean, double stddev, DType dtype = f32,
                     Device device = device::cpu, std::optional<RandomKey> key = {});

// A tensor whose bytes are fed before each run of the program.
Tensor input(const TensorType& type, std::string_view name, Device device = device::cpu);

// --- Elementwise, with NumPy broadcasting ---

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, double exponent);
Tensor maximum(const Tensor& a, const Tensor& b);  // ties: half of the gradient to each
Tensor minimum(const Tensor& a, const Tensor& b);

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
// A number combined with an integer tensor must be representable in its dtype: there is no
// promotion, so `x * 0.5` is an error; write cast(x, f32) * 0.5.
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& a);

Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);       // exact, by erf
Tensor gelu_tanh(const Tensor& x);  // the tanh approximation of GPT-2
Tensor silu(const Tensor& x);
Tensor softplus(const Tensor& x);
Tensor erf(const Tensor& x);
// min(max(x, low), high); the gradient is 0 on the bounds.
Tensor clamp(const Tensor& x, double low, double high);

// Comparisons and logic give booleans.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// Floating point is truncated to integers; values out of range become the nearest limit, and NaN
// becomes 0. Integers that do not fit keep their lowest bits.
Tensor cast(const Tensor& x, DType dtype);
Tensor stop_gradient(const Tensor& x);

// Zeroes each element with probability p and scales the rest by 1 / (1 - p).
Tensor dropout(const Tensor& x, double p, std::optional<RandomKey> key = {});

// --- Reductions; no axes means all, and naming one twice is an error ---

enum class Keep : bool { no, yes };  // whether reduced axes stay, with size 1

Tensor sum(const Tensor& x, const Axes& axes = {}, Keep keep = Keep::no);   // of integers in int64
Tensor mean(const Tensor& x, const Axes& axes = {}, Keep keep = Keep::no);  // floating point only
Tensor sum_squares(const Tensor& x, const Axes& axes = {},
                   Keep keep = Keep::no);  // of half types in float32, of integers in int64
Tensor max(const Tensor& x, const Axes& axes = {},
           Keep keep = Keep::no);  // ties share the gradient
Tensor min(const Tensor& x, const Axes& axes = {}, Keep keep = Keep::no);
Tensor argmax(const Tensor& x, int axis, Keep keep = Keep::no);  // int64; first of equals
Tensor var(const Tensor& x, const Axes& axes = {}, std::int64_t correction = 1,
           Keep keep = Keep::no);
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, Keep keep = Keep::no);
// (Σ |x|^p)^(1/p); the number of elements that are not 0 for p = 0, the largest |x| for infinity
// and the smallest for -infinity. The gradient is 0 for elements that are 0, and if the norm is 0.
Tensor norm(const Tensor& x, double p = 2.0, const Axes& axes = {}, Keep keep = Keep::no);

// Sums `x` down to `shape`, which broadcasts to x's shape: the gradient of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

// --- Shapes: views where possible ---

Tensor reshape(const Tensor& x, const Shape& shape);  // one size may be -1
Tensor flatten(const Tensor& x, int first_axis = 0);
Tensor permute(const Tensor& x, const Axes& order);
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor squeeze(const Tensor& x, int axis);
Tensor unsqueeze(const Tensor& x, int axis);
Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end,
             std::int64_t step = 1);
std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<std::int64_t>& sizes);
std::vector<Tensor> chunk(const Tensor& x, int axis, int parts);  // equal parts
Tensor concat(const std::vector<Tensor>& parts, int axis);
Tensor stack(const std::vector<Tensor>& parts, int axis);
Tensor pad(const Tensor& x, const IntList& before, const IntList& after, double value = 0.0);
Tensor contiguous(const Tensor& x);  // a copy when x is a view that is not

// out[i][j][k] = x[index[i][j][k]][j][k] for axis 0, and alike for the others.
Tensor gather(const Tensor& x, int axis, const Tensor& index);
// x with source[i][j][k] added at [index[i][j][k]][j][k]; deterministic.
Tensor scatter_add(const Tensor& x, int axis, const Tensor& index, const Tensor& source);
// A row of `classes` for each index, with 1 at that place; an index out of range is an error.
Tensor one_hot(const Tensor& index, std::int64_t classes, DType dtype = f32);

// --- Products ---

enum class Transpose : bool { no, yes };

// (..., M, K) x (..., K, N) with broadcasting of the leading axes, plus `bias` (N) if given. A
// transposed operand is read as if its last two axes were swapped.
Tensor matmul(const Tensor& a, const Tensor& b, Transpose transpose_a = Transpose::no,
              Transpose transpose_b = Transpose::no);

// Layout of a linear layer's weight: PyTorch's (out, in), or GPT-2's (in, out).
enum class WeightLayout : bool { out_in, in_out };
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              WeightLayout layout = WeightLayout::out_in);

// --- Along one axis ---

Tensor softmax(const Tensor& x, int axis = -1);
Tensor log_softmax(const Tensor& x, int axis = -1);

// --- Normalisation: to mean 0 and variance 1, then scaled and shifted ---
// Statistics are kept in float32 for half types. A weight or bias may be empty.

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  double eps = 1e-5);  // over the last axis
Tensor rms_norm(const Tensor& x, const Tensor& weight,
                double eps = 1e-6);  // over the last axis, without centring

// x is (N, C, ...); weight and bias are (C). Each of `groups` equal runs of channels is normalised.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps = 1e-5);

enum class Training : bool { no, yes };

struct BatchNormResult {
  Tensor y;
  Tensor running_mean, running_var;  // to be kept for the next call; carry no gradient
};

// x is (N, C, ...), or (N, ..., C) with the channels last; all else is (C). In training each
// channel is normalised by its own mean and variance, which enter the running ones with weight
// `momentum` (the variance as the unbiased estimate); running statistics may then be empty and stay
// so. Otherwise the running statistics are used and returned unchanged.
BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var, Training training,
                           double momentum = 0.1, double eps = 1e-5,
                           ImageLayout layout = ImageLayout::channels_first);

// --- Tables ---

// Rows of `weight` (V, D) picked by `ids` (...), int64 or int32: (..., D).
Tensor embedding(const Tensor& weight, const Tensor& ids);

// --- Losses ---

enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;  // the mean is over the targets that are not ignored
  std::int64_t ignore_index = -100;       // rows with this target have no loss and no gradient
  double label_smoothing = 0.0;           // share of the target spread evenly over all classes
};

// -log softmax(logits)[target] for logits (..., C) and targets (...), int64 or int32.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});
// The same from log-probabilities.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets,
                const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  // Rows whose logits exist at a time; 0: chosen by the shapes, for about 32 MiB of logits, or 288
  // MiB on a GPU that computes them only once. Results for two chunk sizes differ by rounding only.
  std::int64_t chunk = 0;
};

// cross_entropy(linear(x, weight), targets) for x (..., D) and weight (V, D), forward and backward
// without ever holding all the logits: backward recomputes them, chunk by chunk.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options = {});

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
// Binary cross-entropy of sigmoid(x) against targets in [0, 1].
Tensor bce_with_logits(const Tensor& x, const Tensor& target,
                       Reduction reduction = Reduction::mean);

// --- Attention ---

struct AttentionOptions {
  bool causal = false;                // query i sees keys j <= i, both counted from the first
  std::optional<double> scale = {};   // of the scores; 1 / sqrt(D) when not given
  double dropout = 0.0;               // probability with which a weight is dropped
  std::optional<RandomKey> key = {};  // of dropout
  // Broadcasts to (B, H, T, S). Boolean: true lets a query see a key. Floating: added to scores.
  // int32 (B or 1, 1, T, 1): the first key that a query sees. A constant: it has no gradient.
  Tensor mask = {};
};

// softmax(scale · q kᵀ + mask) v, for q (B, H, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv). H is a
// multiple of Hkv; consecutive query heads share a key head. A query that sees no key gives zeros,
// with zero gradients. Memory beyond the result is O(T): scores exist only in tiles.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

// Rotary position embedding of x (..., T, D): at position t, counted from `first_position`,
// elements i and i + D/2 are turned by the angle t · base^(-2i/D).
Tensor rotary(const Tensor& x, double base = 10000.0, std::int64_t first_position = 0);

// --- Images: (N, C, H, W), or (N, H, W, C) where the layout says so ---

// A number for each axis of an image; one alone stands for both.
struct Size2d {
  std::int64_t h = 0, w = 0;

  constexpr Size2d(std::int64_t both = 0) : h(both), w(both) {}
  constexpr Size2d(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  bool operator==(const Size2d&) const = default;
};

struct Conv2dOptions {
  Size2d stride = 1;
  Size2d padding = 0;   // zeros on each side
  Size2d dilation = 1;  // distance between neighbouring taps of the kernel
  std::int64_t groups = 1;
  ImageLayout layout = ImageLayout::channels_first;  // of x and the result
};

// x (N, C, H, W) with weight (O, C / groups, kh, kw), plus `bias` (O) if given. The kernel is not
// flipped. The weight's shape is the same in both layouts of images.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});

// Windows of `kernel` cells, `stride` apart; padding takes no part in a maximum and may be at most
// half of the kernel. A stride of 0 means the kernel's size.
Tensor max_pool2d(const Tensor& x, Size2d kernel, Size2d stride = 0, Size2d padding = 0,
                  ImageLayout layout = ImageLayout::channels_first);

// What the mean of a window that reaches into the padding is divided by.
enum class CountPad : bool { no, yes };
Tensor avg_pool2d(const Tensor& x, Size2d kernel, Size2d stride = 0, Size2d padding = 0,
                  CountPad count_pad = CountPad::yes,
                  ImageLayout layout = ImageLayout::channels_first);
Tensor global_avg_pool2d(const Tensor& x,
                         ImageLayout layout = ImageLayout::channels_first);  // (N, C)

}  // namespace ebb
