#include "support/golden_rows.h"

#include <cmath>

namespace ebb::test {

double number(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  const std::string text = value.get<std::string>();
  return text == "nan" ? NAN : text == "inf" ? INFINITY : -INFINITY;
}

std::vector<double> numbers(const Json& values) {
  std::vector<double> result;
  for (const Json& value : values) result.push_back(number(value));
  return result;
}

IntList int_list(const Json& values) {
  IntList result;
  for (const Json& value : values) result.push_back(value.get<std::int64_t>());
  return result;
}

Case::Case(const Json& json, DType float64_as) : json_(json) {
  for (const Json& input : json.at("inputs")) {
    const DType own = parse_dtype(input.at("dtype").get<std::string>());
    inputs.push_back(eval(cast(Tensor::from(numbers(input.at("values")), int_list(input["shape"])),
                               own == f64 ? float64_as : own)));
  }
}

namespace {

Row unary(Tensor (*f)(const Tensor&)) {
  return [f](const Case& c) { return Tensors{f(c[0])}; };
}
Row binary(Tensor (*f)(const Tensor&, const Tensor&)) {
  return [f](const Case& c) { return Tensors{f(c[0], c[1])}; };
}
Row reduction(Tensor (*f)(const Tensor&, const Axes&, Keep)) {
  return [f](const Case& c) { return Tensors{f(c[0], c.list("axes"), c.keep())}; };
}
// A row with one output.
template <class F>
Row one(F f) {
  return [f](const Case& c) { return Tensors{f(c)}; };
}

}  // namespace

const std::map<std::string, Row>& golden_rows() {
  static const std::map<std::string, Row> table{
      {"neg", unary(neg)},
      {"exp", unary(exp)},
      {"log", unary(log)},
      {"sqrt", unary(sqrt)},
      {"rsqrt", unary(rsqrt)},
      {"reciprocal", unary(reciprocal)},
      {"square", unary(square)},
      {"abs", unary(abs)},
      {"sign", unary(sign)},
      {"sin", unary(sin)},
      {"cos", unary(cos)},
      {"tanh", unary(tanh)},
      {"sigmoid", unary(sigmoid)},
      {"relu", unary(relu)},
      {"gelu", unary(gelu)},
      {"gelu_tanh", unary(gelu_tanh)},
      {"silu", unary(silu)},
      {"softplus", unary(softplus)},
      {"erf", unary(erf)},
      {"add", binary(add)},
      {"sub", binary(sub)},
      {"mul", binary(mul)},
      {"div", binary(div)},
      {"pow", binary(pow)},
      {"maximum", binary(maximum)},
      {"minimum", binary(minimum)},
      {"equal", binary(equal)},
      {"not_equal", binary(not_equal)},
      {"less", binary(less)},
      {"less_equal", binary(less_equal)},
      {"greater", binary(greater)},
      {"greater_equal", binary(greater_equal)},
      {"logical_and", binary(logical_and)},
      {"logical_or", binary(logical_or)},
      {"logical_not", unary(logical_not)},
      {"pow_scalar", one([](const Case& c) { return pow(c[0], c.real("exponent")); })},
      {"clamp", one([](const Case& c) { return clamp(c[0], c.real("low"), c.real("high")); })},
      {"where", one([](const Case& c) { return where(c[0], c[1], c[2]); })},
      {"cast", one([](const Case& c) { return cast(c[0], parse_dtype(c.text("dtype"))); })},
      {"stop_gradient", one([](const Case& c) { return c[0] * stop_gradient(c[0] * c[0]); })},
      {"scalar_operators",
       [](const Case& c) {
         const Tensor& x = c[0];
         const double s = c.real("scalar");
         return Tensors{x + s, x - s, x * s, x / s, s + x, s - x, s * x, s / x, -x};
       }},

      {"scalar_arithmetic",
       [](const Case& c) {
         const Tensor& x = c[0];
         const double s = c.real("scalar");
         return Tensors{x + s, x - s, x * s, s + x, s - x, s * x};
       }},

      {"full", one([](const Case& c) { return full(c.list("shape"), c.real("value")); })},
      {"full_of",
       one([](const Case& c) { return full(c.list("shape"), c.real("value"), c.dtype()); })},
      {"arange_of", one([](const Case& c) { return arange(c.integer("count"), c.dtype()); })},
      {"zeros", one([](const Case& c) { return zeros(c.list("shape")); })},
      {"ones", one([](const Case& c) { return ones(c.list("shape")); })},
      {"arange", one([](const Case& c) { return arange(c.integer("count")); })},
      {"zeros_like", unary(zeros_like)},
      {"full_like", one([](const Case& c) { return full_like(c[0], c.real("value")); })},
      {"one_hot", one([](const Case& c) { return one_hot(c[0], c.integer("classes"), i64); })},

      {"sum", reduction(sum)},
      {"mean", reduction(mean)},
      {"sum_squares", reduction(sum_squares)},
      {"max", reduction(max)},
      {"min", reduction(min)},
      {"norm",
       one([](const Case& c) { return norm(c[0], c.real("p"), c.list("axes"), c.keep()); })},
      {"sum_to", one([](const Case& c) { return sum_to(c[0], c.list("shape")); })},

      {"reshape", one([](const Case& c) { return reshape(c[0], c.list("shape")); })},
      {"reshape_transposed",
       one([](const Case& c) { return reshape(transpose(c[0]), c.list("shape")); })},
      {"flatten", one([](const Case& c) { return flatten(c[0], c.axis("first_axis")); })},
      {"permute", one([](const Case& c) { return permute(c[0], c.list("order")); })},
      {"transpose", one([](const Case& c) { return transpose(c[0], c.axis("a"), c.axis("b")); })},
      {"expand", one([](const Case& c) { return expand(c[0], c.list("shape")); })},
      {"squeeze", one([](const Case& c) { return squeeze(c[0], c.axis()); })},
      {"unsqueeze", one([](const Case& c) { return unsqueeze(c[0], c.axis()); })},
      {"slice", one([](const Case& c) {
         return slice(c[0], c.axis(), c.integer("begin"), c.integer("end"), c.integer("step"));
       })},
      {"split", [](const Case& c) { return split(c[0], c.axis(), c.sizes("sizes")); }},
      {"chunk", [](const Case& c) { return chunk(c[0], c.axis(), c.axis("parts")); }},
      {"concat", one([](const Case& c) { return concat(c.inputs, c.axis()); })},
      {"stack", one([](const Case& c) { return stack(c.inputs, c.axis()); })},
      {"pad", one([](const Case& c) {
         return pad(c[0], c.list("before"), c.list("after"), c.real("value"));
       })},
      {"contiguous", one([](const Case& c) { return contiguous(transpose(c[0])); })},
      {"gather", one([](const Case& c) { return gather(c[0], c.axis(), c[1]); })},
      {"scatter_add", one([](const Case& c) { return scatter_add(c[0], c.axis(), c[1], c[2]); })},

      {"matmul", one([](const Case& c) {
         return matmul(c[0], c[1], c.transposed("transpose_a"), c.transposed("transpose_b"));
       })},
      {"linear", one([](const Case& c) { return linear(c[0], c[1], c.optional(2)); })},

      {"linear_in_out",
       one([](const Case& c) { return linear(c[0], c[1], c.optional(2), WeightLayout::in_out); })},

      // Along an axis
      {"logsumexp", reduction(logsumexp)},
      {"var", one([](const Case& c) {
         return var(c[0], c.list("axes"), c.integer("correction"), c.keep());
       })},
      {"argmax", one([](const Case& c) { return argmax(c[0], c.axis(), c.keep()); })},
      {"softmax", one([](const Case& c) { return softmax(c[0], c.axis()); })},
      {"log_softmax", one([](const Case& c) { return log_softmax(c[0], c.axis()); })},

      // Norms
      {"layer_norm", one([](const Case& c) {
         return layer_norm(c[0], c.optional(1), c.optional(2), c.real("eps"));
       })},
      {"rms_norm", one([](const Case& c) { return rms_norm(c[0], c.optional(1), c.real("eps")); })},
      {"group_norm", one([](const Case& c) {
         return group_norm(c[0], c.integer("groups"), c.optional(1), c.optional(2), c.real("eps"));
       })},
      {"batch_norm_training",
       [](const Case& c) {
         const BatchNormResult r = batch_norm(c[0], c[1], c[2], c[3], c[4], Training::yes,
                                              c.real("momentum"), c.real("eps"));
         return Tensors{r.y, r.running_mean, r.running_var};
       }},
      {"batch_norm_inference", one([](const Case& c) {
         return batch_norm(c[0], c[1], c[2], c[3], c[4], Training::no, 0.1, c.real("eps")).y;
       })},

      // Images
      {"conv2d", one([](const Case& c) {
         return conv2d(
             c[0], c[1], c.optional(2),
             {c.size("stride"), c.size("padding"), c.size("dilation"), c.integer("groups")});
       })},
      {"max_pool2d", one([](const Case& c) {
         return max_pool2d(c[0], c.size("size"), c.size("stride"), c.size("padding"));
       })},
      {"avg_pool2d", one([](const Case& c) {
         return avg_pool2d(c[0], c.size("size"), c.size("stride"), c.size("padding"));
       })},

      {"conv2d_laid_out", one([](const Case& c) {
         return conv2d(c[0], c[1], c.optional(2),
                       {c.size("stride"), c.size("padding"), c.size("dilation"),
                        c.integer("groups"), c.layout()});
       })},
      {"max_pool2d_laid_out", one([](const Case& c) {
         return max_pool2d(c[0], c.size("size"), c.size("stride"), c.size("padding"), c.layout());
       })},
      {"avg_pool2d_laid_out", one([](const Case& c) {
         return avg_pool2d(c[0], c.size("size"), c.size("stride"), c.size("padding"),
                           c.flag("counted") ? CountPad::yes : CountPad::no, c.layout());
       })},
      {"global_avg_pool2d", one([](const Case& c) { return global_avg_pool2d(c[0], c.layout()); })},

      // Tables and losses
      {"embedding", one([](const Case& c) { return embedding(c[0], c[1]); })},
      {"cross_entropy", one([](const Case& c) {
         return cross_entropy(
             c[0], c[1], {c.reduction(), c.integer("ignore_index"), c.real("label_smoothing")});
       })},
      {"nll_loss", one([](const Case& c) {
         return nll_loss(c[0], c[1], {c.reduction(), c.integer("ignore_index"), 0.0});
       })},
      {"mse_loss", one([](const Case& c) { return mse_loss(c[0], c[1], c.reduction()); })},
      {"bce_with_logits",
       one([](const Case& c) { return bce_with_logits(c[0], c[1], c.reduction()); })},
      {"linear_cross_entropy", one([](const Case& c) {
         return linear_cross_entropy(
             c[0], c[1], c[2],
             {c.reduction(), c.integer("ignore_index"), c.real("label_smoothing"), 0});
       })},

      // Attention
      {"scaled_dot_product_attention", one([](const Case& c) {
         AttentionOptions options{.causal = c.flag("causal")};
         if (c.has("scale")) options.scale = c.real("scale");
         return scaled_dot_product_attention(c[0], c[1], c[2], options);
       })},
      {"scaled_dot_product_attention_masked", one([](const Case& c) {
         AttentionOptions options;
         options.mask = c[3];
         return scaled_dot_product_attention(c[0], c[1], c[2], options);
       })},
      {"rotary", one([](const Case& c) {
         return rotary(c[0], c.real("base"), c.integer("first_position"));
       })},
  };
  return table;
}

}  // namespace ebb::test
