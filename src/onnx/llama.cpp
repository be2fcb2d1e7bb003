#include <cmath>

#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using models::LlamaConfig;

nn::Bias with(bool bias) { return bias ? nn::Bias::yes : nn::Bias::no; }

// cos and sin of the tokens' angles, float32 (B, 1, T, D / 2). They come from tables of all
// positions, because an angle computed in float32 has few fractional bits at large positions.
struct Turns {
  Value cosine, sine;
};

// One row for each position up to the model's context, computed in float64 as ebb's kernel does.
Value table(Builder& b, const std::string& name, const LlamaConfig& c,
            const std::vector<double>& speeds, double (*function)(double)) {
  const auto write = [positions = c.context, speeds, magnitude = c.rope.magnitude,
                      function](const Sink& sink) {
    std::vector<float> row(speeds.size());
    for (std::int64_t t = 0; t < positions; ++t) {
      for (std::size_t i = 0; i < speeds.size(); ++i)
        row[i] = static_cast<float>(magnitude * function(static_cast<double>(t) * speeds[i]));
      sink(std::as_bytes(std::span(row)));
    }
  };
  const auto pairs = static_cast<std::int64_t>(speeds.size());
  return b.table(name, {{c.context, pairs}, f32}, write);
}

// `size` is the number of features of a head that are rotated.
Turns turns(Builder& b, const LlamaConfig& c, std::int64_t size, const Value& positions) {
  const Builder::Module module(b, "rotary_emb");
  const std::vector<double> speeds =
      models::rope_speeds(c.rope, c.rope_base, size, device::cpu).to_vector<double>();
  const auto of = [&](const char* name, double (*function)(double)) {
    const Value all = table(b, std::string("model.rotary_emb.") + name, c, speeds, function);
    return b.unsqueeze(b.node("Gather", {all, positions}), {1});
  };
  Value cosine = of("cos", [](double x) { return std::cos(x); }),
        sine = of("sin", [](double x) { return std::sin(x); });
  return {std::move(cosine), std::move(sine)};
}

// Rotates the pairs (i, i + turned / 2) of the first `turned` features of x (B, heads, T, size).
Value rotated(Builder& b, const Value& x, const Turns& turns, std::int64_t turned,
              std::int64_t size) {
  const Value wide = b.in_float(x);
  const std::int64_t pairs = turned / 2;
  const std::vector<Value> half =
      turned == size ? b.split(wide, 2, -1) : b.split(wide, {pairs, pairs, size - turned}, -1);
  const Value first =
                  b.subtract(b.multiply(half[0], turns.cosine), b.multiply(half[1], turns.sine)),
              second = b.add(b.multiply(half[1], turns.cosine), b.multiply(half[0], turns.sine));
  std::vector<Value> parts{first, second};
  if (turned < size) parts.push_back(half[2]);
  return b.cast(b.node("Concat", parts, {{"axis", std::int64_t{-1}}}), x.dtype);
}

Value norm(Builder& b, const LlamaConfig& c, std::string_view name, const Value& x) {
  return c.layer_norms ? layer_norm(b, name, x, c.eps) : rms_norm(b, name, x, c.eps);
}

struct Projected {
  Value queries, keys, values;  // (B, heads, T, D)
};

// Files of GPT-NeoX hold the three layers as one, head by head.
Projected projected_together(Builder& b, const LlamaConfig& c, const Heads& heads, const Value& x) {
  const Value all = linear(b, "query_key_value", x, with(c.attention_bias));
  const std::vector<Value> parts =
      b.split(split_heads(b, all, heads.queries, 3 * heads.size), 3, -1);
  return {parts[0], parts[1], parts[2]};
}

Projected projected(Builder& b, const LlamaConfig& c, const Heads& heads, const Value& x) {
  if (b.has("query_key_value.weight")) return projected_together(b, c, heads, x);
  const auto split = [&](const char* name, std::int64_t count, const char* head_norm) {
    const Value all = linear(b, name, x, with(c.attention_bias));
    if (!c.head_norms || !head_norm) return split_heads(b, all, count, heads.size);
    const Value normed = rms_norm(b, head_norm, b.reshape(all, {0, 0, count, heads.size}), c.eps);
    return b.transpose(normed, {0, 2, 1, 3});
  };
  Value queries = split("q_proj", heads.queries, "q_norm"),
        keys = split("k_proj", heads.keys, "k_norm"), values = split("v_proj", heads.keys, nullptr);
  return {std::move(queries), std::move(keys), std::move(values)};
}

std::int64_t turned_size(const LlamaConfig& c, const Heads& heads) {
  return c.rotary_size ? c.rotary_size : heads.size;
}

Value attention(Builder& b, const LlamaConfig& c, std::int64_t layer, const Heads& heads,
                const Turns& turns, Decoder& decoder, const Value& x) {
  const Builder::Module module(b, "self_attn");
  const Projected p = projected(b, c, heads, x);
  const std::int64_t turned = turned_size(c, heads);
  const Value q = rotated(b, p.queries, turns, turned, heads.size),
              k = rotated(b, p.keys, turns, turned, heads.size);
  const auto [keys, values] = decoder.remember(b, layer, {k, p.values});
  const Visible visible =
      c.has_window(layer, c.context) ? decoder.visible_within(b, c.window) : decoder.visible();
  return linear(b, "o_proj", attend(b, q, keys, values, heads, visible),
                with(c.output_bias.value_or(c.attention_bias)));
}

Value mlp(Builder& b, const LlamaConfig& c, const Value& x) {
  const Builder::Module module(b, "mlp");
  const auto dense = [&](const char* name, const Value& in) {
    return linear(b, name, in, with(c.mlp_bias));
  };
  if (!c.gated) return dense("down_proj", activate(b, c.activation, dense("up_proj", x)));
  const Value gate = activate(b, c.activation, dense("gate_proj", x));
  const Value up = dense("up_proj", x);
  return dense("down_proj", b.multiply(gate, up));
}

Value decoder_layer(Builder& b, const LlamaConfig& c, std::int64_t layer, const Heads& heads,
                    const Turns& turns, Decoder& decoder, const Value& x) {
  const Builder::Module block(b, "layers." + std::to_string(layer));
  const Value attended =
      attention(b, c, layer, heads, turns, decoder, norm(b, c, "input_layernorm", x));
  const auto fed = [&](const Value& in) {
    return mlp(b, c, norm(b, c, "post_attention_layernorm", in));
  };
  if (c.parallel) return b.add(b.add(fed(x), attended), x);
  const Value y = b.add(x, attended);
  return b.add(y, fed(y));
}

}  // namespace

void describe(Builder& b, const LlamaConfig& c, Cache cache) {
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
    if (c.layers > 0) angles = turns(b, c, turned_size(c, heads), decoder.positions());
    for (std::int64_t i = 0; i < c.layers; ++i)
      x = decoder_layer(b, c, i, heads, angles, decoder, x);
    x = norm(b, c, "norm", x);
  }
  const Builder::Module module(b, "lm_head");
  const Value head = c.tied ? b.shared_weight("model.embed_tokens.weight") : b.weight("weight");
  decoder.finish(b, project(b, x, head), c.vocabulary);
}

}  // namespace ebb::onnx
