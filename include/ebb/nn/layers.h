// The layers models are made of. Defaults follow PyTorch's, initial values included.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/ops.h"

namespace ebb::nn {

enum class Bias : bool { no, yes };

// A low-rank adapter (LoRA): adds (alpha / rank) · B(A(dropout(x))) to a linear layer, where A maps
// to `rank` numbers and B, which starts at zero, maps back.
struct LoraOptions {
  std::int64_t rank = 16;
  double alpha = 32.0;
  double dropout = 0.0;  // of x, in training

  bool operator==(const LoraOptions&) const = default;
};

// x (..., in) → (..., out). Its weight can be packed, into few bits or without the zeros of its
// pattern 2:4, and it can have an adapter; ebb/nn/adapt.h does this for a whole model.
class Linear : public Module<Linear> {
 public:
  Linear(Place place, std::int64_t in, std::int64_t out, Bias bias = Bias::yes);
  Linear(Place place, std::int64_t in, std::int64_t out, Bias bias, const Initial& weight_initial,
         WeightLayout layout = WeightLayout::out_in);
  Tensor forward(const Tensor& x);

  std::int64_t in() const { return in_; }
  std::int64_t out() const { return out_; }
  WeightLayout layout() const { return layout_; }

  // For a layer whose weight others read directly, such as the head of a language model: it can
  // neither be packed nor have an adapter.
  void keep_plain() { plain_ = true; }
  bool stays_plain() const { return plain_; }

  // Stores the weight in few bits; it is frozen from then on.
  void pack_weight(LowBits kind);
  const std::optional<PackedWeight>& packed() const { return packed_; }
  // Stores two of every four weights along the inputs, and their positions (ebb/pairs.h); others
  // must be zero. They can be trained. `in` must be a multiple of 4.
  void pack_pairs();
  const std::optional<PairWeight>& pairs() const { return pairs_; }

  // Parameters "lora_A.weight" (rank, in) and "lora_B.weight" (out, rank), never frozen by the
  // modules above.
  void add_adapter(const LoraOptions& options);
  bool has_adapter() const { return adapter_ != nullptr; }
  const LoraOptions& adapter_options() const;  // only where there is one
  // The weight plus what the adapter adds to it, in the layer's own layout and dtype.
  Tensor merged_weight() const;

  // (out, in), or (in, out) by the layout; or its packed bytes, or the values (out, in / 2) of
  // pairs
  Variable weight;
  Variable bias;  // (out), or empty

 private:
  struct Adapter;
  void require_packable() const;

  std::int64_t in_, out_;
  WeightLayout layout_;
  bool plain_ = false;
  std::optional<PackedWeight> packed_;
  std::optional<PairWeight> pairs_;
  std::shared_ptr<Adapter> adapter_;
};

// x (N, in, H, W) → (N, out, H', W'), or (N, H, W, in) → (N, H', W', out) where the options' layout
// is channels-last. The weight is the same in both.
class Conv2d : public Module<Conv2d> {
 public:
  Conv2d(Place place, std::int64_t in, std::int64_t out, std::int64_t kernel,
         const Conv2dOptions& options = {}, Bias bias = Bias::yes);
  Tensor forward(const Tensor& x) { return conv2d(x, weight, bias, options_); }

  Variable weight;  // (out, in / groups, kernel, kernel)
  Variable bias;

 private:
  Conv2dOptions options_;
};

// Normalises each channel of x, (N, C, H, W) or (N, H, W, C), over the batch; in evaluation by
// running statistics, which training steps update.
class BatchNorm2d : public Module<BatchNorm2d> {
 public:
  BatchNorm2d(Place place, std::int64_t channels, double eps = 1e-5, double momentum = 0.1,
              ImageLayout layout = ImageLayout::channels_first);
  Tensor forward(const Tensor& x);

  Variable weight, bias;               // (C)
  Variable running_mean, running_var;  // (C)

 private:
  double eps_, momentum_;
  ImageLayout layout_;
};

class LayerNorm : public Module<LayerNorm> {
 public:
  LayerNorm(Place place, std::int64_t size, double eps = 1e-5);
  Tensor forward(const Tensor& x) { return layer_norm(x, weight, bias, eps_); }

  Variable weight, bias;  // (size)

 private:
  double eps_;
};

class RMSNorm : public Module<RMSNorm> {
 public:
  RMSNorm(Place place, std::int64_t size, double eps = 1e-6);
  Tensor forward(const Tensor& x) { return rms_norm(x, weight, eps_); }

  Variable weight;  // (size)

 private:
  double eps_;
};

// ids (...) → (..., size)
class Embedding : public Module<Embedding> {
 public:
  // The row of `padding` gets no gradient from here.
  Embedding(Place place, std::int64_t count, std::int64_t size,
            const Initial& initial = Initial::normal(1.0),
            std::optional<std::int64_t> padding = {});
  Tensor forward(const Tensor& ids);

  Variable weight;  // (count, size)

 private:
  std::optional<std::int64_t> padding_;
};

class Dropout : public Module<Dropout> {
 public:
  Dropout(Place place, double p) : Module(std::move(place)), p_(p) {}
  Tensor forward(const Tensor& x) { return training() ? dropout(x, p_) : x; }
  double probability() const { return training() ? p_ : 0.0; }

 private:
  double p_;
};

enum class Activation : std::uint8_t {
  relu,
  gelu,
  gelu_tanh,
  silu,
  tanh,
  sigmoid,
  linear,         // x itself
  leaky_relu,     // 0.01 x below 0
  relu6,          // relu, at most 6
  relu2,          // relu, squared
  gelu_10,        // gelu, within [-10, 10]
  quick_gelu,     // x · sigmoid(1.702 x)
  hardswish,      // x · relu6(x + 3) / 6
  mish,           // x · tanh(softplus(x))
  laplace,        // (1 + erf((x - 0.707107) / (0.282095 √2))) / 2
  sqrt_softplus,  // √softplus(x)
};
Tensor activate(Activation activation, const Tensor& x);
// By the names that Hugging Face's configurations use ("gelu_new", "swish"); some have several.
std::optional<Activation> activation_named(std::string_view name);
std::string_view name(Activation activation);  // the first of its names

struct MultiHeadOptions {
  std::int64_t heads = 1;
  std::int64_t head_size = 0;        // 0: width / heads
  std::int64_t key_value_heads = 0;  // 0: as many as heads
  bool causal = false;
  double dropout = 0.0;  // of attention weights, in training
  Bias bias = Bias::yes;
};

// Self-attention of x (B, T, width), with an optional mask that broadcasts to (B, heads, T, T).
class MultiHeadAttention : public Module<MultiHeadAttention> {
 public:
  MultiHeadAttention(Place place, std::int64_t width, const MultiHeadOptions& options);
  Tensor forward(const Tensor& x, const Tensor& mask = {});

  Linear query, key, value, out;

 private:
  MultiHeadOptions options_;
  std::int64_t head_size_, key_value_heads_;
};

enum class NormOrder : bool { post, pre };

struct TransformerBlockOptions {
  MultiHeadOptions attention;
  std::int64_t hidden = 0;  // of the feed-forward part; 0: 4 × width
  NormOrder norm = NormOrder::pre;
  Activation activation = Activation::gelu;
  double dropout = 0.0;
};

// Attention and a feed-forward part, each added to its input.
class TransformerBlock : public Module<TransformerBlock> {
 public:
  TransformerBlock(Place place, std::int64_t width, const TransformerBlockOptions& options);
  Tensor forward(const Tensor& x, const Tensor& mask = {});

  LayerNorm norm1, norm2;
  MultiHeadAttention attention;
  Linear up, down;
  Dropout dropout;

 private:
  TransformerBlockOptions options_;
};

// Modules and functions applied in turn. Modules are named by their number.
class Sequential : public Module<Sequential> {
 public:
  explicit Sequential(Place place) : Module(std::move(place)) {}

  template <class M, class... Args>
  Sequential& add(Args&&... args) {
    auto module = std::make_shared<M>(at(std::to_string(steps_.size()), source()),
                                      std::forward<Args>(args)...);
    steps_.push_back([module](const Tensor& x) { return (*module)(x); });
    return *this;
  }
  Sequential& add(Activation activation) {
    steps_.push_back([activation](const Tensor& x) { return activate(activation, x); });
    return *this;
  }
  Tensor forward(Tensor x) {
    for (const auto& step : steps_) x = step(x);
    return x;
  }

 private:
  std::vector<std::function<Tensor(const Tensor&)>> steps_;
};

}  // namespace ebb::nn
