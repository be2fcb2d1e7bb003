#include <cmath>

#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using models::Gpt2Config;

Value conv1d(Builder& b, std::string_view name, const Value& x) {
  return linear(b, name, x, nn::Bias::yes, WeightOrder::in_out);
}

Value attention(Builder& b, const Gpt2Config& c, std::int64_t layer, Heads heads, Decoder& decoder,
                const Value& x) {
  const Builder::Module module(b, "attn");
  if (c.scale_by_inverse_layer) heads.scale /= static_cast<double>(layer + 1);
  const std::vector<Value> qkv = b.split(conv1d(b, "c_attn", x), 3, 2);
  const auto split = [&](const Value& t) { return split_heads(b, t, heads.queries, heads.size); };
  const Value q = split(qkv[0]), k = split(qkv[1]), v = split(qkv[2]);
  const auto [keys, values] = decoder.remember(b, layer, {k, v});
  return conv1d(b, "c_proj", attend(b, q, keys, values, heads, decoder.visible()));
}

Value mlp(Builder& b, const Gpt2Config& c, const Value& x) {
  const Builder::Module module(b, "mlp");
  return conv1d(b, "c_proj", activate(b, c.activation, conv1d(b, "c_fc", x)));
}

}  // namespace

void describe(Builder& b, const Gpt2Config& c, Cache cache) {
  const std::int64_t size = c.size_of_head();
  const Heads heads{.queries = c.heads,
                    .keys = c.heads,
                    .size = size,
                    .scale = c.scale_attention ? 1.0 / std::sqrt(static_cast<double>(size)) : 1.0};
  Decoder decoder(b, c.layers, heads, cache);
  Value x;
  {
    const Builder::Module module(b, "transformer");
    x = b.add(embedding(b, "wte", decoder.ids()), embedding(b, "wpe", decoder.positions()));
    for (std::int64_t i = 0; i < c.layers; ++i) {
      const Builder::Module block(b, "h." + std::to_string(i));
      x = b.add(x, attention(b, c, i, heads, decoder, layer_norm(b, "ln_1", x, c.eps)));
      x = b.add(x, mlp(b, c, layer_norm(b, "ln_2", x, c.eps)));
    }
    x = layer_norm(b, "ln_f", x, c.eps);
  }
  const Builder::Module module(b, "lm_head");
  const Value head = c.tied ? b.shared_weight("transformer.wte.weight") : b.weight("weight");
  decoder.finish(b, project(b, x, head), c.vocabulary);
}

}  // namespace ebb::onnx
