// Pruning of single weights: compared with straightforward float64 versions of the published
// algorithms (tools/make_golden_pruning.py), and on whole models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/nn/adapt.h"
#include "ebb/prune/gptq.h"
#include "ebb/prune/structure.h"
#include "ebb/prune/weights.h"
#include "ebb/train/eval_step.h"
#include "ops/quantised_linear/codec.h"
#include "prune/cholesky.h"
#include "support/model_folders.h"
#include "support/op_check.h"

namespace ebb::prune {
namespace {

using Numbers = std::vector<double>;

const nlohmann::json& golden() {
  static const nlohmann::json file =
      test::read_json(std::filesystem::path(EBB_GOLDEN_FOLDER) / "pruning/weights.json");
  return file;
}

Sparsity sparsity_of(const nlohmann::json& row) {
  Sparsity s{.share = row.at("share").get<double>()};
  if (!row.at("pattern").is_null())
    s.pattern =
        Pattern{row.at("pattern")[0].get<std::int64_t>(), row.at("pattern")[1].get<std::int64_t>()};
  return s;
}

struct Case {
  std::int64_t outputs, columns, rows;
  Numbers weight, inputs;

  explicit Case(const nlohmann::json& row)
      : outputs(row.at("outputs").get<std::int64_t>()),
        columns(row.at("columns").get<std::int64_t>()),
        rows(row.at("rows").get<std::int64_t>()),
        weight(row.at("weight").get<Numbers>()),
        inputs(row.at("inputs").get<Numbers>()) {}

  // Of which SparseGPT takes 2 / rows.
  Numbers gram(double scale = 1.0) const {
    Numbers sums(static_cast<std::size_t>(columns * columns), 0.0);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < columns; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          sums[static_cast<std::size_t>(i * columns + j)] +=
              scale * inputs[static_cast<std::size_t>(r * columns + i)] *
              inputs[static_cast<std::size_t>(r * columns + j)];
    return sums;
  }
  WeightMatrix matrix() { return {outputs, columns, weight}; }
};

// Both compute in float64; the factors of the Cholesky decomposition are rounded in another order.
void expect_near(const Numbers& a, const Numbers& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-9) << i;
}

TEST(PruneWeights, SparseGptAndWandaEqualTheReferences) {
  for (const nlohmann::json& row : golden().at("matrices")) {
    const Sparsity sparsity = sparsity_of(row);
    Case sparse(row);
    Numbers gram = sparse.gram(2.0 / static_cast<double>(sparse.rows));
    prune_by_sparsegpt(sparse.matrix(), gram, sparsity,
                       {.block = row.at("block").get<std::int64_t>()});
    expect_near(sparse.weight, row.at("sparsegpt").get<Numbers>());
    Case plain(row);
    Numbers squares;
    for (std::int64_t i = 0; i < plain.columns; ++i)
      squares.push_back(plain.gram()[static_cast<std::size_t>(i * plain.columns + i)]);
    prune_by_wanda(plain.matrix(), squares, sparsity);
    expect_near(plain.weight, row.at("wanda").get<Numbers>());
  }
}

TEST(PruneWeights, MagnitudeTakesTheSmallest) {
  Numbers w{3, -1, 2, 0.5, -4, 1, 0.25, 2};
  const WeightMatrix m{2, 4, w};
  prune_by_magnitude(m, {.share = 0.5});
  EXPECT_EQ(w, (Numbers{3, 0, 2, 0, -4, 0, 0, 2}));  // of the two that are 2 both stay
  w = {3, -1, 2, 0.5, -4, 1, 0.25, 2};
  prune_by_magnitude(m, {.pattern = Pattern{1, 4}});
  EXPECT_EQ(w, (Numbers{3, 0, 0, 0, -4, 0, 0, 0}));
  w = {1, 1, 1, 1, 1, 1, 1, 1};
  prune_by_magnitude(m, {.share = 0.3});  // two of eight: the first ones
  EXPECT_EQ(w, (Numbers{0, 0, 1, 1, 1, 1, 1, 1}));
}

// GPTQ as published, one column after another and nothing else: no blocks, plain inverses. Scales
// are those of the packed bytes.
Numbers plain_gptq(const Case& c, Numbers hessian, const Encoding& e, const PackedMatrix& packed) {
  const std::int64_t n = c.columns;
  const auto at = [&](std::int64_t i, std::int64_t j) {
    return static_cast<std::size_t>(i * n + j);
  };
  double mean = 0.0;
  for (std::int64_t i = 0; i < n; ++i) mean += hessian[at(i, i)] / static_cast<double>(n);
  for (std::int64_t i = 0; i < n; ++i) hessian[at(i, i)] += 0.01 * mean;
  Numbers w = c.weight;
  for (std::int64_t q = 0; q < n; ++q) {
    // The inverse of the rest of H, rows and columns from q on, by Gauss and Jordan.
    const std::int64_t left = n - q;
    std::vector<Numbers> rows;
    for (std::int64_t i = q; i < n; ++i) {
      Numbers row(static_cast<std::size_t>(2 * left), 0.0);
      for (std::int64_t j = q; j < n; ++j) row[static_cast<std::size_t>(j - q)] = hessian[at(i, j)];
      row[static_cast<std::size_t>(left + i - q)] = 1.0;
      rows.push_back(row);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double pivot = rows[i][i];
      for (double& x : rows[i]) x /= pivot;
      for (std::size_t k = 0; k < rows.size(); ++k) {
        if (k == i) continue;
        const double by = rows[k][i];
        for (std::size_t j = 0; j < rows[k].size(); ++j) rows[k][j] -= by * rows[i][j];
      }
    }
    const auto inverse = [&](std::int64_t j) {
      return rows[0][static_cast<std::size_t>(left + j - q)];
    };
    for (std::int64_t r = 0; r < c.outputs; ++r) {
      const auto scale = static_cast<double>(packed.scale(r, q / e.block));
      double& own = w[at(r, q)];
      const double top = e.kind == LowBits::int8 ? 127.0 : 7.0,
                   kept = scale == 0.0 ? 0.0
                                       : std::nearbyint(std::clamp(own / scale, -top, top)) * scale,
                   error = (own - kept) / inverse(q);
      for (std::int64_t j = q + 1; j < n; ++j) w[at(r, j)] -= error * inverse(j);
      own = kept;
    }
  }
  return w;
}

TEST(PruneWeights, GptqEqualsThePublishedAlgorithm) {
  int cases = 0;
  for (const nlohmann::json& row : golden().at("matrices"))
    for (const LowBits kind : {LowBits::int4, LowBits::int8})
      for (const std::int64_t block : {3, 16, 128}) {
        Case own(row);
        Encoding e = Encoding::usual(kind, own.outputs, own.columns);
        e.block = 16;
        const Numbers hessian = own.gram(2.0 / static_cast<double>(own.rows));
        if (std::any_of(hessian.begin(), hessian.end(), [](double x) { return x == 0.0; }))
          continue;
        const Case before = own;
        Numbers overwritten = hessian;
        const auto bytes = pack_by_gptq(own.matrix(), overwritten, e, {.block = block});
        expect_near(own.weight, plain_gptq(before, hessian, e, PackedMatrix(e, bytes.data())));
        // The bytes stand for these values: products compute scales and values in float32.
        const Tensor packed = Tensor::from(bytes, {e.bytes()});
        const auto values = test::values_of(eval(dequantise(packed, e, f64)));
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_NEAR(values[i], own.weight[i], 1e-6 * (1.0 + std::abs(values[i])));
        ++cases;
      }
  EXPECT_GT(cases, 5);
}

// The purpose of GPTQ: the layer's outputs are closer to those of the dense matrix than with plain
// rounding.
TEST(PruneWeights, GptqRoundsBetterThanTheNearest) {
  for (const LowBits kind : {LowBits::int4, LowBits::nf4}) {
    double plain = 0.0, compensated = 0.0;
    for (const nlohmann::json& row : golden().at("matrices")) {
      Case own(row);
      const Encoding e = Encoding::usual(kind, own.outputs, own.columns);
      const Numbers dense = own.weight;
      const Tensor rounded =
          eval(dequantise(quantise(Tensor::from(dense, {own.outputs, own.columns}), e), e, f64));
      Numbers hessian = own.gram(2.0 / static_cast<double>(own.rows));
      const Numbers sums = hessian;
      pack_by_gptq(own.matrix(), hessian, e);
      const auto error = [&](const Numbers& w) {  // tr(D H Dᵀ)
        double total = 0.0;
        for (std::int64_t r = 0; r < own.outputs; ++r)
          for (std::int64_t i = 0; i < own.columns; ++i)
            for (std::int64_t j = 0; j < own.columns; ++j) {
              const auto d = [&](std::int64_t k) {
                const auto at = static_cast<std::size_t>(r * own.columns + k);
                return w[at] - dense[at];
              };
              total += d(i) * sums[static_cast<std::size_t>(i * own.columns + j)] * d(j);
            }
        return total;
      };
      plain += error(test::values_of(rounded)), compensated += error(own.weight);
    }
    EXPECT_LT(compensated, 0.9 * plain) << name(kind);
  }
}

TEST(PruneWeights, GptqPacksWholeModels) {
  auto model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{.vocabulary = 29, .context = 16, .layers = 2, .heads = 2, .width = 32});
  const LossFunction loss = [&](const Batch& b) { return model.loss(b.x(), b.y()); };
  std::vector<Batch> batches;
  for (std::int64_t n = 0; n < 4; ++n) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < 4 * 17; ++i)
      ids.push_back(static_cast<std::int32_t>((i * i + n * 7 + i * n) % 29));
    const Tensor all = Tensor::from(ids, {4, 17});
    batches.push_back({{eval(slice(all, 1, 0, 16)), eval(slice(all, 1, 1, 17))}});
  }
  TrainStep step(model, optim::AdamW{.lr = 0.01}, loss);
  for (int i = 0; i < 40; ++i) step(batches[static_cast<std::size_t>(i % 4)]);
  const auto mean_loss = [&] {
    EvalStep eval_step(model, [&](const Batch& b) { return std::vector{loss(b)}; });
    double total = 0.0;
    for (const Batch& b : batches) total += eval_step(b).front() / 4.0;
    return total;
  };
  const double dense = mean_loss();
  const QuantisedWeights report = quantise_weights(model, loss, batches, LowBits::int4);
  EXPECT_EQ(report.matrices, 8);
  EXPECT_EQ(report.weights, 2 * 12 * 32 * 32);
  EXPECT_TRUE(nn::has_packed_weights(model));
  EXPECT_NEAR(mean_loss(), dense, 0.05);
  EXPECT_THROW(quantise_weights(model, loss, {}, LowBits::int4), ValueError);
}

TEST(PruneWeights, GptqRefusesWhatItCannotPack) {
  Numbers w(32, 1.0), gram(256, 0.0);
  for (std::size_t i = 0; i < 16; ++i) gram[i * 17] = 1.0;
  const WeightMatrix m{2, 16, w};
  EXPECT_THROW(pack_by_gptq(m, gram, Encoding::usual(LowBits::int4, 16, 2)), ShapeError);
  EXPECT_THROW(pack_by_gptq(m, std::span(gram).first(9), Encoding::usual(LowBits::int4, 2, 16)),
               ShapeError);
  EXPECT_THROW(pack_by_gptq(m, gram, Encoding::usual(LowBits::int4, 2, 16), {.block = 0}),
               ValueError);
  w[3] = std::nan("");
  EXPECT_THROW(pack_by_gptq(m, gram, Encoding::usual(LowBits::int4, 2, 16)), ValueError);
}

TEST(PruneWeights, InverseCholesky) {
  // A = [[4, 2], [2, 3]], A⁻¹ = [[3, -2], [-2, 4]] / 8
  Numbers a{4, 2, 2, 3};
  ASSERT_TRUE(inverse_cholesky(a, 2));
  EXPECT_NEAR(a[0] * a[0], 3.0 / 8, 1e-12);
  EXPECT_NEAR(a[0] * a[1], -2.0 / 8, 1e-12);
  EXPECT_NEAR(a[1] * a[1] + a[3] * a[3], 4.0 / 8, 1e-12);
  EXPECT_EQ(a[2], 0.0);
  Numbers indefinite{1, 2, 2, 1};
  EXPECT_FALSE(inverse_cholesky(indefinite, 2));
}

TEST(PruneWeights, BadArguments) {
  for (const char* text : {"3:2", "2:2", "0:4", "2", "2:", ":4", "2:4x", "-1:4", "a:b", "1:65", ""})
    EXPECT_THROW(pattern_named(text), ValueError) << text;
  EXPECT_EQ(pattern_named("2:4"), (Pattern{2, 4}));
  EXPECT_THROW(method_named("random"), ValueError);
  Numbers w(12, 1.0), gram(36, 0.0);
  const WeightMatrix m{2, 6, w};
  EXPECT_THROW(prune_by_magnitude(m, {.pattern = Pattern{2, 4}}), ValueError);
  EXPECT_THROW(prune_by_magnitude(m, {.share = 0.0}), ValueError);
  EXPECT_THROW(prune_by_magnitude(m, {.share = std::nan("")}), ValueError);
  EXPECT_THROW(prune_by_magnitude({3, 6, w}, {}), ShapeError);
  w[3] = std::nan("");
  EXPECT_THROW(prune_by_magnitude(m, {}), ValueError);
  w[3] = 1.0;
  EXPECT_THROW(prune_by_wanda(m, gram, {}), ShapeError);
  EXPECT_THROW(prune_by_sparsegpt(m, std::span(gram).first(6), {}), ShapeError);
  EXPECT_THROW(prune_by_sparsegpt(m, gram, {.pattern = Pattern{1, 3}}, {.block = 4}), ValueError);
  gram[0] = std::nan("");
  EXPECT_THROW(prune_by_sparsegpt(m, gram, {}), ValueError);
}

// Through the blocks of a model: the second block gets the outputs of the pruned first block.
TEST(PruneWeights, BlocksAreCalibratedOnPrunedOnes) {
  auto model = io::load_llama(test::golden_models / "llama", device::cpu, f32);
  const Tensor x = eval(slice(test::tokens(), 1, 0, 11)), y = eval(slice(test::tokens(), 1, 1, 12));
  const std::vector<Batch> batches{{{x, y}}};
  const LossFunction loss = [&](const Batch& b) { return model->loss(b.x(), b.y()); };
  const PrunedWeights report = prune_weights(*model, loss, batches, batches[0].types(),
                                             Method::wanda, {.pattern = Pattern{2, 4}});
  EXPECT_EQ(report.matrices, 14);
  EXPECT_EQ(report.weights, 3840);
  EXPECT_EQ(report.zeros, 1920);

  // The first matrix of the second block by hand: its inputs come from the pruned first block.
  auto dense = io::load_llama(test::golden_models / "llama", device::cpu, f32);
  const std::string path = "model.layers.1.self_attn.q_proj.weight";
  Variable from_dense, result;
  for (const auto& p : dense->parameters())
    if (p.path == path) from_dense = p.variable;
  const auto now = model->parameters();
  const auto before = dense->parameters();
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i].path == path) result = now[i].variable;
    if (now[i].path.find("layers.0.") != std::string::npos) {
      Variable target = before[i].variable;
      target.assign(now[i].variable);
    }
  }
  const Structure s = find_structure(
      *dense, [&](const Batch& b) { return dense->loss(b.x(), b.y()); }, batches[0].types());
  const auto product = std::find_if(s.products.begin(), s.products.end(), [&](const Product& p) {
    return s.variables[p.variable].path == path;
  });
  ASSERT_NE(product, s.products.end());
  Graph graph;
  graph.inputs = s.inputs;
  graph.outputs = {sum_squares(product->input, {0})};
  Program program(graph);
  program.run(batches[0].tensors);
  const auto squares = program.output(0).to_vector<float>();
  const auto weights = from_dense.to_vector<float>();
  Numbers expected(weights.begin(), weights.end());
  prune_by_wanda({16, 16, expected}, Numbers(squares.begin(), squares.end()),
                 {.pattern = Pattern{2, 4}});
  const auto actual = result.to_vector<float>();
  EXPECT_EQ(Numbers(actual.begin(), actual.end()), expected);
  EXPECT_THROW(prune_weights(*model, loss, {}, batches[0].types(), Method::wanda, {}), ValueError);
}

}  // namespace
}  // namespace ebb::prune
