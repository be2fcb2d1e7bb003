// Single weights: against straightforward float64 versions of the published algorithms
// (tools/make_golden_pruning.py), and whole models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ebb/prune/structure.h"
#include "ebb/prune/weights.h"
#include "prune/cholesky.h"
#include "support/model_folders.h"

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

// Through the blocks of a model: the second block sees what the pruned first one gives.
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
