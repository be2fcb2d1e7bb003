// Ops on CUDA at sizes for which their kernels take other paths: rows that fill a warp, a block or
// more, sums cut into slices, ids sorted by several blocks, tiles with remainders. The small
// samples of every op's own test only take the first path.
#include <gtest/gtest.h>

#include "ebb/ops.h"
#include "ops/batch_norm/batch_norm.h"
#include "ops/row_norm/row_norm.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using Tensors = std::vector<Tensor>;

void check_sizes(const std::string& name, std::vector<SampleInput> inputs,
                 std::function<Tensors(const Tensors&)> function, double half_factor = 4.0) {
  SCOPED_TRACE(name);
  Sample sample{name, std::move(inputs), std::move(function)};
  sample.half_tolerance_factor = half_factor;
  check_cuda(sample);
}

TEST(CudaSizes, Rows) {
  // Whole packs in a warp's registers, no whole packs, in a block's registers, beyond them.
  for (const std::int64_t columns : {768, 771, 1024, 3072, 4099, 9216, 9217}) {
    const std::string n = std::to_string(columns);
    const Shape shape{5, columns};
    check_sizes("softmax " + n, {SampleInput::real(shape)}, [](const Tensors& x) {
      return Tensors{softmax(x[0]), log_softmax(x[0])};
    });
    check_sizes("statistics " + n, {SampleInput::real(shape)}, [](const Tensors& x) {
      return Tensors{logsumexp(x[0], {-1}), var(x[0], {-1}), argmax(x[0], -1)};
    });
    check_sizes(
        "cross_entropy " + n,
        {SampleInput::real(shape, -4.0, 4.0), SampleInput::index({5}, columns)},
        [](const Tensors& x) {
          return Tensors{
              cross_entropy(x[0], x[1], {.reduction = Reduction::sum}),
              cross_entropy(x[0], x[1], {.reduction = Reduction::none, .label_smoothing = 0.1})};
        });
  }
}

// The backward op by itself, with a residual's gradient and the sum of its rows.
void check_norm_gradient(const std::string& name, std::int64_t rows, std::int64_t columns) {
  const SampleInput x = SampleInput::real({rows, columns}), c = SampleInput::real({columns});
  check_sizes("layer_norm_grad " + name, {x, x, c, x}, [](const Tensors& t) {
    const Tensor wide = cast(t[0], t[0].dtype() == f64 ? f64 : f32);
    const Tensor centre = mean(wide, {-1}, Keep::yes);
    const Tensor rstd = rsqrt(mean(square(wide - centre), {-1}) + 1e-5);
    return apply(layer_norm_grad_op(), {t[0], t[1], squeeze(centre, -1), rstd, t[2], t[3]},
                 RowNormGradAttributes{1e-5, true, true, true, true, true});
  });
}

// A batch norm by itself, and with the following relu fused into it. With relu no y is near 0,
// where a different rounding would change the mask.
void check_batch_norms(const Shape& shape, ImageLayout layout) {
  const std::string where = to_string(shape) + ", " + std::string(name(layout));
  const Shape channels{shape[channel_axis(shape, layout)]};
  const auto norm = [layout](const Tensors& x) {
    return batch_norm(x[0], x[1], x[2], {}, {}, Training::yes, 0.1, 1e-5, layout).y;
  };
  check_sizes("batch_norm " + where,
              {SampleInput::real(shape), SampleInput::real(channels), SampleInput::real(channels)},
              [norm](const Tensors& x) { return Tensors{norm(x)}; });
  SampleInput x = SampleInput::real(shape);
  for (std::int64_t i = 0; i < shape.elements(); ++i)
    x.values.push_back((i / (shape.elements() / shape[0]) % 2 == 0 ? -1.0 : 1.0) *
                       (1.0 + static_cast<double>(i % 11) / 16.0));
  check_sizes("batch_norm and relu " + where,
              {x, SampleInput::real(channels, 0.5, 1.5), SampleInput::real(channels, -0.1, 0.1)},
              [norm](const Tensors& t) { return Tensors{relu(norm(t))}; });
  check_sizes("batch_norm and relu, its bias in float32 " + where,
              {x, SampleInput::real(channels, 0.5, 1.5), {channels, f32, -0.1, 0.1, false, {}}},
              [norm](const Tensors& t) {
                return Tensors{relu(norm({t[0], t[1], cast(t[2], t[0].dtype())}))};
              });
}

// Rows processed by a warp, and by teams that share a block or have it alone, with one or several
// packs of a row per thread, and rows longer than any team keeps; one slice of rows and two.
TEST(CudaSizes, GradientsOfNorms) {
  for (const std::int64_t columns : {64, 768, 1600, 3072, 6144, 17408})
    for (const std::int64_t rows : {3, 70})
      check_norm_gradient(std::to_string(rows) + " x " + std::to_string(columns), rows, columns);
}

TEST(CudaSizes, Norms) {
  for (const std::int64_t columns : {768, 770, 1600, 9216})
    for (const std::int64_t rows : {3, 300}) {
      const std::vector<SampleInput> inputs{SampleInput::real({rows, columns}),
                                            SampleInput::real({columns}),
                                            SampleInput::real({columns})};
      const std::string n = std::to_string(rows) + " x " + std::to_string(columns);
      check_sizes("layer_norm " + n, inputs, [](const Tensors& x) {
        return Tensors{layer_norm(x[0], x[1], x[2], 1e-5), rms_norm(x[0], x[1], 1e-5)};
      });
      check_sizes("residual " + n, inputs, [](const Tensors& x) {
        return Tensors{x[0] + layer_norm(x[0], x[1], x[2], 1e-5)};
      });
    }
  for (const Shape& shape : {Shape{8, 6, 40, 40}, Shape{64, 3, 33}, Shape{500, 7}})
    check_batch_norms(shape, ImageLayout::channels_first);
}

// Products with epilogues: residual sums, gradients of GELU.
TEST(CudaSizes, JoinedProducts) {
  for (const std::int64_t rows : {3, 300}) {
    const std::vector<SampleInput> inputs{
        SampleInput::real({rows, 64}), SampleInput::real({64, 256}, -0.2, 0.2),
        SampleInput::real({256}), SampleInput::real({256, 64}, -0.2, 0.2), SampleInput::real({64})};
    check_sizes("residual block, " + std::to_string(rows) + " rows", inputs, [](const Tensors& x) {
      const Tensor hidden = linear(x[0], x[1], x[2], WeightLayout::in_out);
      return Tensors{x[0] + linear(gelu_tanh(hidden), x[3], x[4], WeightLayout::in_out)};
    });
  }
}

// With the channels last: packs and single columns, several tiles of columns, slices of rows, and
// remainders of both.
TEST(CudaSizes, NormsOfLastChannels) {
  for (const Shape& shape : {Shape{4, 33, 31, 64}, Shape{8, 9, 7, 520}, Shape{70, 5, 5, 33},
                             Shape{3, 3, 3, 2048}, Shape{20000, 3}})
    check_batch_norms(shape, ImageLayout::channels_last);
}

struct ReductionSize {
  Shape shape;
  Axes axes;
};
const ReductionSize reduction_sizes[] = {
    {{300, 1000}, {}},     {{300, 1001}, {}}, {{5000, 33}, {0}},    {{5000, 64}, {0}},
    {{7, 30000}, {1}},     {{3000, 20}, {1}}, {{20, 300, 24}, {1}}, {{20, 30, 7}, {0, 2}},
    {{2, 900, 3}, {0, 1}}, {{1000, 33}, {0}}, {{20, 130, 24}, {1}}};

TEST(CudaSizes, Reductions) {
  for (const ReductionSize& c : reduction_sizes)
    check_sizes("reduce " + to_string(c.shape) + " over " + to_string(c.axes),
                {SampleInput::real(c.shape, -0.3, 0.3)}, [&](const Tensors& x) {
                  return Tensors{sum(x[0], c.axes), sum_squares(x[0], c.axes), max(x[0], c.axes),
                                 min(x[0], c.axes),
                                 sum(transpose(x[0], 0, x[0].rank() - 1), c.axes)};
                });
}

// Elements that are evaluated as they are reduced, for all ways of accessing operands: in packs,
// one value per pack, single elements, across the rows of an operand, and none.
TEST(CudaSizes, ReductionsOfEvaluatedElements) {
  for (const ReductionSize& c : reduction_sizes) {
    const std::string n = to_string(c.shape) + " over " + to_string(c.axes);
    const int last = c.shape.rank() - 1;
    Shape turned = c.shape, column = c.shape, row{c.shape[last]};
    std::swap(turned[0], turned[last]), column[last] = 1;
    const auto of = [](const Shape& shape) { return SampleInput::real(shape, -0.3, 0.3); };
    check_sizes("kinds of reductions, " + n, {of(c.shape), of(c.shape)}, [&](const Tensors& x) {
      return Tensors{sum(x[0] * x[1], c.axes), sum_squares(x[0] - x[1], c.axes),
                     max(abs(x[0]), c.axes), min(maximum(x[0], x[1]), c.axes)};
    });
    check_sizes("broadcast operands, " + n, {of(c.shape), of(row), of(column), of({})},
                [&](const Tensors& x) {
                  return Tensors{sum(x[0] * x[1], c.axes), sum(x[0] * x[2] + x[1], c.axes),
                                 sum(square(x[0] - x[3]), c.axes)};
                });
    check_sizes("strided operands, " + n, {of(c.shape), of(turned)}, [&](const Tensors& x) {
      return Tensors{sum(x[0] * transpose(x[1], 0, last), c.axes)};
    });
    check_sizes("dropout and casts, " + n, {of(c.shape)}, [&](const Tensors& x) {
      return Tensors{sum(dropout(x[0], 0.25, RandomKey{7}), c.axes), sum(cast(x[0], f64), c.axes),
                     max(cast(cast(x[0], bf16), x[0].dtype()), c.axes)};
    });
  }
  // Long enough for slices, as steps have them: losses, and gradients of biases and scales.
  const SampleInput big = SampleInput::real({2048, 768}, -0.3, 0.3);
  check_sizes("as in steps", {big, big, SampleInput::real({2048, 1})}, [](const Tensors& x) {
    return Tensors{mean(square(x[0] - x[1])), sum(dropout(x[0], 0.1, RandomKey{7}) * x[1], {0}),
                   sum((x[0] - x[2]) * x[1], {0}), sum(x[0] * x[1], {1}),
                   max(abs(reshape(x[0], {4, 512, 768})), {0, 2})};
  });
}

TEST(CudaSizes, Embeddings) {
  const struct {
    std::int64_t rows, columns, ids, distinct;
  } cases[] = {
      {1000, 64, 5000, 1000}, {1000, 36, 5000, 3}, {70000, 16, 3000, 70000}, {2, 24, 4100, 2}};
  for (const auto& c : cases)
    check_sizes("embedding of " + std::to_string(c.rows) + " x " + std::to_string(c.columns),
                {SampleInput::real({c.rows, c.columns}), SampleInput::index({c.ids}, c.distinct)},
                [](const Tensors& x) { return Tensors{embedding(x[0], x[1])}; });
}

TEST(CudaSizes, FusedLoss) {
  // 9000 classes are two blocks, and 200 rows several tiles of few rows each.
  check_sizes(
      "linear_cross_entropy",
      {SampleInput::real({200, 48}), SampleInput::real({9000, 48}, -0.5, 0.5),
       SampleInput::index({200}, 9000)},
      [](const Tensors& x) {
        return Tensors{linear_cross_entropy(
            x[0], x[1], x[2], {.reduction = Reduction::sum, .label_smoothing = 0.1, .chunk = 64})};
      },
      8.0);
}

TEST(CudaSizes, Attention) {
  const struct {
    std::int64_t heads, kv_heads, queries, keys, size;
    bool causal;
  } cases[] = {{2, 2, 200, 200, 64, true}, {4, 2, 130, 130, 128, true}, {2, 1, 70, 150, 80, false},
               {1, 1, 150, 70, 32, true},  {2, 2, 65, 65, 160, true},   {1, 1, 64, 128, 64, false},
               {2, 2, 100, 100, 20, true}};
  for (const auto& c : cases) {
    const std::string n = std::to_string(c.queries) + " x " + std::to_string(c.keys) + " of " +
                          std::to_string(c.size);
    const std::vector<SampleInput> inputs{SampleInput::real({1, c.heads, c.queries, c.size}),
                                          SampleInput::real({1, c.kv_heads, c.keys, c.size}),
                                          SampleInput::real({1, c.kv_heads, c.keys, c.size})};
    check_sizes("attention " + n, inputs, [&](const Tensors& x) {
      return Tensors{scaled_dot_product_attention(x[0], x[1], x[2], {.causal = c.causal})};
    });
    check_sizes("attention with dropout " + n, inputs, [&](const Tensors& x) {
      return Tensors{scaled_dot_product_attention(
          x[0], x[1], x[2], {.causal = c.causal, .dropout = 0.2, .key = RandomKey{4}})};
    });
    std::vector<SampleInput> masked = inputs;
    masked.push_back(SampleInput::boolean({1, 1, c.queries, c.keys}));
    check_sizes("attention with a mask " + n, masked, [&](const Tensors& x) {
      return Tensors{scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3]})};
    });
  }
  // Heads in the layout of a projection: (B, T, 3, H, D), read in place.
  check_sizes("attention on views", {SampleInput::real({2, 70, 3, 2, 64})}, [](const Tensors& x) {
    const std::vector<Tensor> parts = split(x[0], 2, {1, 1, 1});
    const auto head = [&](std::size_t i) {
      return permute(reshape(parts[i], {2, 70, 2, 64}), {0, 2, 1, 3});
    };
    return Tensors{scaled_dot_product_attention(head(0), head(1), head(2), {.causal = true})};
  });
}

TEST(CudaSizes, Elementwise) {
  check_sizes("broadcast rows",
              {SampleInput::real({70, 768}), SampleInput::real({768}), SampleInput::real({70, 1})},
              [](const Tensors& x) { return Tensors{gelu_tanh(x[0] * x[2] + x[1])}; });
  check_sizes("odd rows", {SampleInput::real({70, 77}), SampleInput::real({77})},
              [](const Tensors& x) { return Tensors{silu(x[0] + x[1])}; });
  check_sizes("transposed", {SampleInput::real({70, 96}), SampleInput::real({96, 70})},
              [](const Tensors& x) { return Tensors{x[0] * transpose(x[1], 0, 1)}; });
  check_sizes("slices", {SampleInput::real({70, 99})}, [](const Tensors& x) {
    return Tensors{exp(slice(x[0], 1, 3, 67)) + slice(x[0], 1, 32, 96)};
  });
  check_sizes("many parts", std::vector<SampleInput>(100, SampleInput::real({3})),
              [](const Tensors& x) { return Tensors{concat(x, 0) * 2.0}; });
}

TEST(CudaSizes, Images) {
  check_sizes(
      "convolutions",
      {SampleInput::real({4, 16, 20, 20}), SampleInput::real({24, 16, 3, 3}, -0.2, 0.2),
       SampleInput::real({24})},
      [](const Tensors& x) {
        return Tensors{conv2d(x[0], x[1], x[2], {.stride = 1, .padding = 1}),
                       conv2d(x[0], x[1], x[2], {.stride = 2, .padding = 1})};
      },
      8.0);
  check_sizes("pooling", {SampleInput::real({4, 16, 21, 20})}, [](const Tensors& x) {
    return Tensors{max_pool2d(x[0], 3, 2, 1), avg_pool2d(x[0], 2, 2, 0, CountPad::yes)};
  });
  constexpr ImageLayout last = ImageLayout::channels_last;
  check_sizes(
      "convolutions, channels last",
      {SampleInput::real({4, 20, 20, 16}), SampleInput::real({24, 16, 3, 3}, -0.2, 0.2),
       SampleInput::real({24})},
      [](const Tensors& x) {
        return Tensors{conv2d(x[0], x[1], x[2], {.stride = 1, .padding = 1, .layout = last}),
                       conv2d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .layout = last})};
      },
      8.0);
  check_sizes("pooling, channels last", {SampleInput::real({4, 21, 20, 16})}, [](const Tensors& x) {
    return Tensors{max_pool2d(x[0], 3, 2, 1, last), avg_pool2d(x[0], 2, 2, 0, CountPad::yes, last)};
  });
}

TEST(CudaSizes, Products) {
  check_sizes(
      "products",
      {SampleInput::real({130, 96}), SampleInput::real({200, 96}), SampleInput::real({200})},
      [](const Tensors& x) {
        return Tensors{linear(x[0], x[1], x[2]), matmul(x[0], x[0], Transpose::yes)};
      },
      8.0);
  check_sizes(
      "batches of products", {SampleInput::real({2, 3, 40, 32}), SampleInput::real({3, 32, 24})},
      [](const Tensors& x) {
        return Tensors{matmul(x[0], x[1]), matmul(permute(x[0], {1, 0, 2, 3}), unsqueeze(x[1], 1))};
      },
      8.0);
}

}  // namespace
}  // namespace ebb::test
