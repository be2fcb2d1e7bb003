#include <cmath>

#include "ebb/error.h"
#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using models::LlamaConfig;

nn::Bias with(bool bias) { return bias ? nn::Bias::yes : nn::Bias::no; }

// cos and sin of the tokens' angles, float32 (B, 1, T, D / 2). They come from tables of all
// positions: an angle that is computed in float32 has few fractional bits at large positions.
struct Turns {
  Value cosine, sine;
};

// One row for each position up to the model's context, computed in float64 as ebb's kernel does.
Value table(Builder& b, const std::string& name, const LlamaConfig& c, std::int64_t pairs,
            double (*function)(double)) {
  const auto write = [positions = c.context, pairs, base = c.rope_base,
                      function](const Sink& sink) {
    std::vector<float> row(static_cast<std::size_t>(pairs));
    for (std::int64_t t = 0; t < positions; ++t) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double speed =
            std::exp(static_cast<double>(i) * (-std::log(base) / static_cast<double>(pairs)));
        row[static_cast<std::size_t>(i)] =
            static_cast<float>(function(static_cast<double>(t) * speed));
      }
      sink(std::as_bytes(std::span(row)));
    }
  };
  return b.table(name, {{c.context, pairs}, f32}, write);
}

Turns turns(Builder& b, const LlamaConfig& c, std::int64_t pairs, const Value& positions) {
  const Builder::Module module(b, "rotary_emb");
  const auto of = [&](const char* name, double (*function)(double)) {
    const Value all = table(b, std::string("model.rotary_emb.") + name, c, pairs, function);
    return b.unsqueeze(b.node("Gather", {all, positions}), {1});
  };
  Value cosine = of("cos", [](double x) { return std::cos(x); }),
        sine = of("sin", [](double x) { return std::sin(x); });
  return {std::move(cosine), std::move(sine)};
}

// Turns the pairs (i, i + D / 2) of x (B, heads, T, D).
Value rotated(Builder& b, const Value& x, const Turns& turns) {
  const std::vector<Value> half = b.split(b.in_float(x), 2, -1);
  const Value first =
                  b.subtract(b.multiply(half[0], turns.cosine), b.multiply(half[1], turns.sine)),
              second = b.add(b.multiply(half[1], turns.cosine), b.multiply(half[0], turns.sine));
  return b.cast(b.node("Concat", {first, second}, {{"axis", std::int64_t{-1}}}), x.dtype);
}

Value attention(Builder& b, const LlamaConfig& c, std::int64_t layer, const Heads& heads,
                const Turns& turns, Decoder& decoder, const Value& x) {
  const Builder::Module module(b, "self_attn");
  const auto split = [&](const char* name, std::int64_t count) {
    return split_heads(b, linear(b, name, x, with(c.attention_bias)), count, heads.size);
  };
  const Value q = rotated(b, split("q_proj", heads.queries), turns),
              k = rotated(b, split("k_proj", heads.keys), turns), v = split("v_proj", heads.keys);
  const auto [keys, values] = decoder.remember(b, layer, {k, v});
  return linear(b, "o_proj", attend(b, q, keys, values, heads, decoder.visible()),
                with(c.attention_bias));
}

Value mlp(Builder& b, const LlamaConfig& c, const Value& x) {
  const Builder::Module module(b, "mlp");
  const Value gate = activate(b, c.activation, linear(b, "gate_proj", x, with(c.mlp_bias)));
  const Value up = linear(b, "up_proj", x, with(c.mlp_bias));
  return linear(b, "down_proj", b.multiply(gate, up), with(c.mlp_bias));
}

}  // namespace

void describe(Builder& b, const LlamaConfig& c, Cache cache) {
  if (!c.plain())
    throw ValueError(
        "ebb export has Llama with plain rotary positions, RMS norms and no windows; this model "
        "has other parts");
  const std::int64_t size = c.head_size ? c.head_size : c.width / c.heads;
  const Heads heads{.queries = c.heads,
                    .keys = c.key_value_heads,
                    .size = size,
                    .scale = 1.0 / std::sqrt(static_cast<double>(size))};
  Decoder decoder(b, c.layers, heads, cache);
  Value x;
  {
    const Builder::Module module(b, "model");
    x = embedding(b, "embed_tokens", decoder.ids());
    Turns angles;
    if (c.layers > 0) angles = turns(b, c, size / 2, decoder.positions());
    for (std::int64_t i = 0; i < c.layers; ++i) {
      const Builder::Module block(b, "layers." + std::to_string(i));
      x = b.add(
          x, attention(b, c, i, heads, angles, decoder, rms_norm(b, "input_layernorm", x, c.eps)));
      x = b.add(x, mlp(b, c, rms_norm(b, "post_attention_layernorm", x, c.eps)));
    }
    x = rms_norm(b, "norm", x, c.eps);
  }
  const Builder::Module module(b, "lm_head");
  const Value head = c.tied ? b.shared_weight("model.embed_tokens.weight") : b.weight("weight");
  decoder.finish(b, project(b, x, head), c.vocabulary);
}

}  // namespace ebb::onnx
