// Steps that are not finite: they are not taken, and the first non-finite value is found.
#include "ebb/train/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/ebb.h"
#include "ebb/nn/layers.h"
#include "ebb/optim/by_name.h"
#include "support/op_check.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Finite for small inputs; `second` takes a logarithm, of a negative number if x is large. The
// mask's -inf is harmless.
struct Second : nn::Module<Second> {
  nn::Linear inner{at("inner"), 4, 4};
  explicit Second(nn::Place place) : Module(std::move(place)) {}
  Tensor forward(const Tensor& x) { return log(full_like(x, 10.0) - inner(x) * 0.0 - x); }

 private:
  static Tensor full_like(const Tensor& x, double value) {
    return full(x.shape(), value, x.dtype(), x.device());
  }
};

struct Net : nn::Module<Net> {
  nn::Linear first{at("first"), 4, 4};
  nn::BatchNorm2d norm{at("norm"), 4};
  Second second{at("second")};
  Tensor forward(const Tensor& x) {
    const Tensor shown =
        exp(minimum(first(x), full({}, -std::numeric_limits<double>::infinity(), f32)));
    return sum(second(x)) + sum(shown) + sum(square(norm(reshape(first(x), {-1, 4, 1, 1})))) +
           sum(square(first(x)));
  }
};

struct Trained {
  Net model = make<Net>(device::cpu, f32);
  TrainStep step;

  explicit Trained(TrainOptions options, const optim::Optimizer& optimizer = optim::AdamW{})
      : step(
            model, optimizer, [this](const Batch& b) { return model(b.x()); }, std::move(options)) {
  }

  std::vector<double> values() {
    std::vector<double> all;
    for (const auto& list : {model.parameters(), model.buffers()})
      for (const nn::NamedVariable& v : list)
        for (const double x : values_of(v.variable)) all.push_back(x);
    for (const auto& [path, v] : step.optimizer_state().all())
      for (const double x : values_of(v)) all.push_back(x);
    return all;
  }
};

Batch filled(double value) { return {{eval(full({3, 4}, value, f32, device::cpu))}}; }

TrainOptions guarded(UpdateGuard guard) {
  TrainOptions options;
  options.guard = guard;
  return options;
}

TEST(NonFinite, AGuardedStepChangesNothingAndIsExplained) {
  for (const UpdateGuard guard : {UpdateGuard::loss, UpdateGuard::gradients})
    for (const std::string_view name : optim::names()) {
      SCOPED_TRACE(name);
      Trained run(guarded(guard), optim::by_name(name));
      EXPECT_FALSE(run.step(filled(1.0)).skipped);
      const std::vector<double> before = run.values();
      const StepResult result = run.step(filled(20.0));
      EXPECT_TRUE(std::isnan(result.loss));
      EXPECT_TRUE(result.skipped);
      EXPECT_EQ(run.values(), before);
      const auto found = run.step.find_non_finite(filled(20.0));
      ASSERT_TRUE(found);
      EXPECT_EQ(found->module, "second");
      EXPECT_EQ(found->op, "log");
      EXPECT_EQ(run.values(), before);
      EXPECT_FALSE(run.step(filled(1.0)).skipped);  // and training can go on
    }
}

TEST(NonFinite, TheSearchKeepsTheBudget) {
  workloads::Options size = small_workload("gpt2");
  size.layers = 2, size.width = 16, size.heads = 2, size.vocabulary = 50, size.sequence = 24;
  const auto task = workloads::make_workload(size);
  const Tensor weight = task->model().parameters().front().variable;
  const auto loss = [&](const Batch& b) { return task->loss(b) + sum(sqrt(weight * 0.0)); };
  TrainOptions options = guarded(UpdateGuard::loss);
  options.clip_norm = 1.0;  // the norm is found, from all values of backward
  const auto make_step = [&] { return TrainStep(task->model(), optim::SGD{}, loss, options); };
  data::Loader loader(task->train, {.batch = task->batch_size});
  const std::vector<TensorType> types = loader.types().front();
  const Bytes budget{make_step().plan(types).peak.count * 3 / 4};
  options.compile.plan.budget = budget;
  const Batch batch = loader.next();
  TrainStep step = make_step();
  EXPECT_TRUE(step(batch).skipped);
  const auto found = step.find_non_finite(batch);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->op, "div");  // of the square root's gradient
  EXPECT_LE(step.arena()->size() + step.plan(types).persistent, budget);

  const Graph small{{}, {exp(weight)}, {}};
  options.compile.plan.budget = 1_KiB;
  EXPECT_THROW((void)find_non_finite(small, small.outputs[0], {}, 0, options.compile), MemoryError);
}

TEST(NonFinite, NamesBatchesAndParameters) {
  Trained run(guarded(UpdateGuard::loss));
  run.step(filled(nan));
  EXPECT_EQ(run.step.find_non_finite(filled(nan))->kind, NonFinite::Kind::batch);
  EXPECT_FALSE(non_finite_variable(run.model));
  nn::NamedVariable weight = run.model.parameters()[0];
  weight.variable.assign(eval(full(weight.variable.shape(), nan, f32, device::cpu)));
  run.step(filled(1.0));
  const auto found = run.step.find_non_finite(filled(1.0));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, NonFinite::Kind::parameter);
  EXPECT_EQ(found->module, weight.path);
  EXPECT_EQ(non_finite_variable(run.model), weight.path);
}

// The loss is finite, its gradient is not: the square root's at zero is infinite.
struct Root : nn::Module<Root> {
  nn::Linear linear{at("linear"), 4, 4};
  Tensor forward(const Tensor& x) { return sum(sqrt(linear(x) * 0.0)) + sum(linear(x)); }
};

TEST(NonFinite, GradientsAreSeenWhereTheirNormIs) {
  struct Case {
    UpdateGuard guard;
    std::optional<double> clip;
    bool skipped;
  };
  for (const Case& c : {Case{UpdateGuard::none, {}, false},
                        {UpdateGuard::loss, {}, false},
                        {UpdateGuard::loss, 1.0, true},
                        {UpdateGuard::gradients, {}, true}}) {
    Root model = make<Root>(device::cpu, f32);
    TrainOptions options = guarded(c.guard);
    options.clip_norm = c.clip;
    TrainStep step(
        model, optim::SGD{.lr = 0.1}, [&](const Batch& b) { return model(b.x()); }, options);
    const StepResult result = step(filled(1.0));
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_EQ(result.skipped, c.skipped);
    EXPECT_EQ(non_finite_variable(model).has_value(), !c.skipped);
    if (c.clip) {
      const auto found = step.find_non_finite(filled(1.0));
      ASSERT_TRUE(found);
      EXPECT_EQ(found->kind, NonFinite::Kind::result);
    }
  }
}

// If everything is finite, guards change no bit and take no more than a few scalars of memory; only
// waiting for all gradients costs more.
TEST(NonFinite, GuardsChangeNoBit) {
  std::vector<double> expected;
  Bytes peak;
  for (const UpdateGuard guard : {UpdateGuard::none, UpdateGuard::loss, UpdateGuard::gradients}) {
    Trained run(guarded(guard));
    for (int i = 0; i < 3; ++i) run.step(filled(0.5 + i));
    const Bytes now = run.step.plan(filled(1.0).types()).peak;
    if (guard == UpdateGuard::none) expected = run.values(), peak = now;
    EXPECT_EQ(run.values(), expected);
    if (guard == UpdateGuard::loss) {
      EXPECT_LE(now, peak + Bytes{8192});  // outputs have pages of their own
    }
  }
}

TEST(NonFinite, FindsThemInEveryFloatingType) {
  struct One : nn::Module<One> {
    nn::Linear linear{at("linear"), 2, 2};
  };
  for (const DType dtype : {f64, f32, f16, bf16}) {
    One model = make<One>(device::cpu, dtype);
    for (const nn::NamedVariable& p : model.parameters()) p.variable.materialise();
    EXPECT_FALSE(non_finite_variable(model)) << name(dtype);
    nn::NamedVariable last = model.parameters().back();
    for (const double bad : {nan, std::numeric_limits<double>::infinity()}) {
      last.variable.assign(eval(full(last.variable.shape(), bad, dtype, device::cpu)));
      EXPECT_EQ(non_finite_variable(model), last.path) << name(dtype);
    }
    last.variable.assign(eval(full(last.variable.shape(), -8.0, dtype, device::cpu)));
    EXPECT_EQ(largest_weight(model).path, last.path) << name(dtype);
    EXPECT_EQ(largest_weight(model).value, 8.0) << name(dtype);
  }
}

// A guard by the loss is known before backward begins, so updates still run as soon as their
// gradients exist, and gradients do not accumulate.
TEST(NonFinite, AGuardByTheLossDelaysNoUpdate) {
  const auto least = [](UpdateGuard guard) {
    const auto task = workloads::make_workload(small_workload("gpt2"));
    TrainOptions options;
    options.guard = guard;
    TrainStep step(
        task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, options);
    const data::Loader loader(task->train, {.batch = task->batch_size});
    return least_budget(step.trace(loader.types().front()), CompileOptions{});
  };
  EXPECT_LE(least(UpdateGuard::loss), least(UpdateGuard::none) + 4_KiB);
}

}  // namespace
}  // namespace ebb::test
