#include "cases.h"

#include <fmt/core.h>

#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/optim/by_name.h"

namespace ebb::bench {
namespace {

constexpr std::int64_t vocabulary = 50257;

Variable normal(const Shape& shape, double deviation = 1.0) {
  return Variable(random_normal(shape, 0.0, deviation));
}

// Ids spread over [0, limit).
Tensor ids(const Shape& shape, std::int64_t limit) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.elements()));
  std::uint64_t state = 1;
  for (std::int64_t& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(limit));
  }
  return Tensor::from(values, shape);
}

Graph outputs(std::vector<Tensor> tensors) { return {{}, std::move(tensors), {}}; }

// The gradients of y in `wrt`, given a gradient of y. y itself is computed only if they read it.
Graph backward(const Tensor& y, std::vector<Tensor> wrt) {
  const Tensor outputs_of[] = {y}, up[] = {normal(y.shape())};
  return outputs(vjp(outputs_of, up, wrt));
}

Graph forward_backward(const Tensor& y, std::vector<Tensor> wrt) {
  Graph graph = backward(y, std::move(wrt));
  graph.outputs.insert(graph.outputs.begin(), y);
  return graph;
}

// The same for a loss, which has one element.
Graph loss_and_gradients(const Tensor& loss, const std::vector<Tensor>& wrt) {
  Graph graph = outputs(grad(loss, wrt));
  graph.outputs.insert(graph.outputs.begin(), loss);
  return graph;
}

// One step of an optimizer on a matrix.
Graph update(const optim::Optimizer& optimizer) {
  optim::StateStore state;
  const Shape shape{5000, 4000};
  return {{},
          {},
          optimizer.updates({{"weight", normal(shape)}}, {normal(shape)}, full({}, 1e-3, f64),
                            full({}, 1.0, f64), {}, state)};
}

// --- Rows of the table that come in families

Case product(const std::string& name, std::int64_t rows, std::int64_t inner, std::int64_t columns,
             std::int64_t batch = 1) {
  return {"matmul/" + name,
          [=] {
            if (batch == 1)
              return outputs({matmul(normal({rows, inner}), normal({inner, columns}))});
            return outputs({matmul(normal({batch, rows, inner}), normal({batch, inner, columns}))});
          },
          [=] { return library_product(batch, rows, inner, columns); }};
}

// Products of half types, compared with float32 products of the same size by the BLAS.
void add_half_products(std::vector<Case>& cases, std::int64_t rows, std::int64_t inner,
                       std::int64_t columns, std::int64_t batch = 1) {
  for (DType dtype : {bf16, f16}) {
    const auto factor = [=](std::int64_t height, std::int64_t width) {
      const Shape shape = batch == 1 ? Shape{height, width} : Shape{batch, height, width};
      return Variable(random_normal(shape, 0.0, 1.0, dtype));
    };
    cases.push_back({fmt::format("matmul_{}/{}{}x{}x{}", dtype == bf16 ? "bf16" : "fp16",
                                 batch == 1 ? "" : fmt::format("{}x", batch), rows, inner, columns),
                     [=] { return outputs({matmul(factor(rows, inner), factor(inner, columns))}); },
                     [=] { return library_product(batch, rows, inner, columns); }});
  }
}

void add_convolution(std::vector<Case>& cases, const ConvProblem& p) {
  const auto add = [&](const char* pass_name, ConvPass pass) {
    cases.push_back(
        {fmt::format("conv/{}x{}x{}/{}x{}/{}", p.batch, p.in, p.size, p.out, p.kernel, pass_name),
         [=] {
           const Variable x = normal({p.batch, p.in, p.size, p.size}),
                          w = normal({p.out, p.in, p.kernel, p.kernel}, 0.05);
           const Tensor y = conv2d(x, w, {}, {.padding = p.kernel / 2});
           if (pass == ConvPass::forward) return outputs({y});
           return backward(y, {pass == ConvPass::input_grad ? x : w});
         },
         [=] { return library_convolution(pass, p); }});
  };
  add("forward", ConvPass::forward);
  add("input_grad", ConvPass::input_grad);
  add("weight_grad", ConvPass::weight_grad);
}

void add_attention(std::vector<Case>& cases, const std::string& name, const Shape& shape,
                   bool causal) {
  const auto graph = [=](bool with_backward) {
    const Variable q = normal(shape), k = normal(shape), v = normal(shape);
    const Tensor y = scaled_dot_product_attention(q, k, v, {.causal = causal});
    return with_backward ? forward_backward(y, {q, k, v}) : outputs({y});
  };
  cases.push_back({"attention/" + name + "/forward", [=] { return graph(false); }});
  cases.push_back({"attention/" + name + "/forward_backward", [=] { return graph(true); }});
}

// `functions` functions, each a product or a sum.
Tensor chain(const Tensor& a, const Tensor& b, const Tensor& c, int functions) {
  Tensor y = a;
  for (int i = 0; i < functions; i += 2) y = y * b + c;
  return y;
}

// --- The table

const Shape wide{2048, 2048};  // 4M elements
const Shape hidden{8192, 768};
const Shape scores{4096, 1024};

std::vector<Case> make_cases() {
  std::vector<Case> cases{
      product("512", 512, 512, 512),
      product("1024", 1024, 1024, 1024),
      product("2048", 2048, 2048, 2048),
      product("2048x768x3072", 2048, 768, 3072),
      product("96x256x64x256", 256, 64, 256, 96),
  };
  add_half_products(cases, 1024, 768, 3072);
  add_half_products(cases, 2048, 768, 768);
  add_half_products(cases, 768, 4096, 768);
  add_half_products(cases, 64, 512, 512);
  add_half_products(cases, 256, 64, 256, 96);
  add_convolution(cases, {64, 16, 32, 16, 3});
  add_convolution(cases, {16, 64, 32, 64, 3});
  add_convolution(cases, {64, 64, 8, 64, 3});
  add_convolution(cases, {16, 256, 16, 64, 1});
  add_attention(cases, "4x12x1024x64/causal", {4, 12, 1024, 64}, true);
  add_attention(cases, "8x4x256x64/causal", {8, 4, 256, 64}, true);
  add_attention(cases, "8x12x128x64/full", {8, 12, 128, 64}, false);

  const std::vector<Case> others{
      {"pointwise/gelu_tanh", [] { return outputs({gelu_tanh(normal(wide))}); }},
      {"pointwise/gelu_tanh_grad",
       [] {
         const Variable x = normal(wide);
         return backward(gelu_tanh(x), {x});
       }},
      {"pointwise/chain_4",
       [] { return outputs({chain(normal(wide), normal(wide), normal(wide), 4)}); }},
      {"pointwise/chain_12",
       [] { return outputs({chain(normal(wide), normal(wide), normal(wide), 12)}); }},
      {"pointwise/bias_gelu_dropout",
       [] { return outputs({dropout(gelu_tanh(normal(wide) + normal({wide[1]})), 0.1)}); }},
      {"reduce/sum_all", [] { return outputs({sum(normal(wide))}); }},
      {"reduce/sum_rows", [] { return outputs({sum(normal(wide), {-1})}); }},
      {"reduce/sum_columns", [] { return outputs({sum(normal(wide), {0})}); }},
      {"reduce/max_rows", [] { return outputs({max(normal(wide), {-1})}); }},
      {"softmax/forward", [] { return outputs({softmax(normal(scores))}); }},
      {"softmax/forward_backward",
       [] {
         const Variable x = normal(scores);
         return forward_backward(softmax(x), {x});
       }},
      {"layer_norm/forward",
       [] {
         return outputs({layer_norm(normal(hidden), normal({hidden[1]}), normal({hidden[1]}))});
       }},
      {"layer_norm/forward_backward",
       [] {
         const Variable x = normal(hidden), w = normal({hidden[1]}), b = normal({hidden[1]});
         return forward_backward(layer_norm(x, w, b), {x, w, b});
       }},
      {"cross_entropy/forward_backward",
       [] {
         const Variable x = normal({512, vocabulary});
         return loss_and_gradients(cross_entropy(x, ids({512}, vocabulary)), {x});
       }},
      {"linear_cross_entropy/forward_backward",
       [] {
         const Variable x = normal({512, 768}), w = normal({vocabulary, 768}, 0.02);
         return loss_and_gradients(linear_cross_entropy(x, w, ids({512}, vocabulary)), {x, w});
       }},
      {"embedding/forward",
       [] {
         return outputs({embedding(normal({vocabulary, 768}), ids({8, 1024}, vocabulary))});
       }},
      {"embedding/grad",
       [] {
         const Variable w = normal({vocabulary, 768});
         return backward(embedding(w, ids({8, 1024}, vocabulary)), {w});
       }},
      {"adamw/20M", [] { return update(optim::AdamW{}); }},
      {"adamw_bf16/20M", [] { return update(optim::AdamW{.state = bf16}); }},
      {"adamw_bf16_stochastic/20M",
       [] { return update(optim::AdamW{.state = bf16, .rounding = optim::Rounding::stochastic}); }},
  };
  cases.insert(cases.end(), others.begin(), others.end());
  for (std::string_view name : optim::names())
    if (name != "adamw")
      cases.push_back({fmt::format("{}/20M", name), [=] { return update(optim::by_name(name)); }});
  return cases;
}

}  // namespace

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = make_cases();
  return cases;
}

}  // namespace ebb::bench
