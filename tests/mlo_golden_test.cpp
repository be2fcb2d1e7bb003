// Hypergradients against Betty's: tests/golden/multilevel.json, written by
// tools/make_golden_multilevel.py, where the problem is described.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ebb/mlo/engine.h"
#include "ebb/nn/layers.h"
#include "ebb/optim/sgd.h"
#include "support/mlo_problems.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

struct Net : nn::Module<Net> {
  nn::Linear hidden{at("hidden"), 3, 4}, out{at("out"), 4, 1};
  Tensor forward(const Tensor& x) { return reshape(out(tanh(hidden(x))), {-1}); }
};

struct Points : mlo::Problem {
  Points(const std::string& name, nn::ModuleBase& module, const optim::Optimizer& optimizer,
         const mlo::Config& config, const Json& x, const Json& y)
      : Problem(name, module, optimizer, {config, optim::constant(), {}}),
        batch{{matrix_of(x.get<Matrix>()), vector_of(y.get<Row>())}} {}
  Batch get_batch() override { return batch; }
  Batch batch;
};

struct Lower : Points {
  using Points::Points;
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor weights = sigmoid(static_cast<Point&>(other("upper").module()).value);
    return mean(weights * square(static_cast<Net&>(module())(b.x()) - b.y()));
  }
};

struct Upper : Points {
  using Points::Points;
  mlo::StepOutput training_step(const Batch& b) override {
    return mean(square(static_cast<Net&>(other("lower").module())(b.x()) - b.y()));
  }
};

TEST(MloGolden, FirstHypergradientsOfBetty) {
  const Json golden = Json::parse(std::ifstream(EBB_GOLDEN_FOLDER "/multilevel.json"));
  ASSERT_GE(golden["cases"].size(), 5u);
  for (const Json& c : golden["cases"]) {
    mlo::Config config{.type = mlo::method_by_name(c["type"].get<std::string>()),
                       .unroll_steps = 2};
    config.darts_alpha = c.value("darts_alpha", config.darts_alpha);
    config.neumann_iterations = c.value("neumann_iterations", config.neumann_iterations);
    config.neumann_alpha = c.value("neumann_alpha", config.neumann_alpha);
    config.cg_iterations = c.value("cg_iterations", config.cg_iterations);

    auto net = make<Net>(device::cpu, f64);
    for (const nn::NamedVariable& p : net.parameters()) {
      Variable variable = p.variable;
      variable.assign(Tensor::from(golden["net"][p.path].get<Row>(), p.variable.shape()));
    }
    Point weights(golden["weights"].get<Row>());
    Lower lower("lower", net, optim::SGD{.lr = 0.1, .momentum = 0.9}, config, golden["train_x"],
                golden["train_y"]);
    Upper upper("upper", weights, optim::SGD{.lr = 1.0}, {}, golden["valid_x"], golden["valid_y"]);
    mlo::Engine engine({&lower, &upper},
                       {.u2l = {{"upper", {"lower"}}}, .l2u = {{"lower", {"upper"}}}});
    engine.train_step();
    // Differences of losses of size one over a width of 0.01 lose two digits of sixteen.
    EXPECT_LT(distance(gradient_by_step(engine, weights), c["hypergradient"].get<Row>()), 1e-12)
        << c.dump();
  }
}

}  // namespace
}  // namespace ebb::test
