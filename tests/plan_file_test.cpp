// Plans that are written to a file and read back run to the same bits, and no file does harm.
#include "ebb/io/plan_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "ebb/data/loader.h"
#include "ebb/program.h"
#include "ebb/threads.h"
#include "ebb/train/train_step.h"
#include "passes/passes.h"
#include "plan/check.h"
#include "support/op_check.h"
#include "support/plan_check.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "support/small_workload.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json read(const fs::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

void write(const fs::path& path, const Json& json) { std::ofstream(path) << json; }

std::string error_of(const fs::path& path, const Graph& graph) {
  try {
    io::load_plan(path, graph);
  } catch (const FileError& error) {
    return error.what();
  }
  return "none";
}

// A perceptron with a step of descent, whose batch and width can be chosen.
struct Small {
  explicit Small(std::int64_t batch = 4, std::int64_t width = 3) {
    const Tensor x = input({{batch, width}, f32}, "x");
    Variable w(random_normal({width, 5}, 0.0, 1.0, f32)), b(zeros({5}, f32));
    const Tensor loss = mean(square(tanh(matmul(x, w) + b)));
    const std::vector<Tensor> gradients = grad(loss, std::vector<Tensor>{w, b});
    graph = {.inputs = {x}, .outputs = {loss}, .updates = {}};
    graph.updates.push_back({w, w - gradients[0] * 0.1});
    graph.updates.push_back({b, b - gradients[1] * 0.1});
  }
  Graph graph;
};

TEST(PlanFile, RandomGraphsRunToTheSameBits) {
  const TemporaryFolder folder;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomGraph random = random_graph(seed, 60, seed % 2 ? f32 : f64);
    const CompileOptions options{.plan = {}, .seed = 5};
    random.reset_variables();
    Program plain(random.graph, options);
    const Image expected = two_steps(random, plain);
    io::save_plan(plain.plan(), random.graph, folder / "a.plan");
    const Plan loaded = io::load_plan(folder / "a.plan", random.graph);
    test::check_plan(loaded);
    EXPECT_EQ(loaded.peak, plain.plan().peak);
    EXPECT_EQ(loaded.predicted_ms, plain.plan().predicted_ms);
    random.reset_variables();
    Program again(random.graph, loaded, options);
    EXPECT_EQ(two_steps(random, again), expected);
  }
}

TEST(PlanFile, ComputesItsGraphAndNoOther) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const RandomGraph random = random_graph(seed, 40, f32);
    const Graph graph = insert_copies(random.graph);
    PlanOptions least;
    least.effort = Effort::quick;
    least.budget = least_budget(graph, least);
    for (const PlanOptions& options : {PlanOptions{}, least}) {
      Plan plan = make_plan(graph, options);
      EXPECT_EQ(differs(plan, graph), std::nullopt);
      // Another op with the same types in place of one whose result is read.
      for (const InstructionId i : plan.instructions.ids()) {
        Instruction& instruction = plan.instructions[i];
        if (instruction.op->name() != "add") continue;
        for (const Op* op : all_ops())
          if (op->name() == "sub") instruction.op = op;
        EXPECT_NE(differs(plan, graph), std::nullopt);
        break;
      }
    }
  }
}

// A plan must not only be safe to run: a plan that computes another function is refused.
TEST(PlanFile, AnotherFunctionIsRefused) {
  const Small small;
  CompileOptions options;
  options.planner = [](const Graph& graph) { return plan_program(graph); };
  EXPECT_NO_THROW(plan_program(small.graph, options));
  options.plan.tf32 = true;
  EXPECT_THROW(plan_program(small.graph, options), ValueError);
  options.plan.tf32 = false, options.machine.huge_pages = true;
  EXPECT_THROW(plan_program(small.graph, options), ValueError);
  options.machine.huge_pages = false;
  options.planner = [](const Graph& graph) {
    Plan plan = plan_program(graph);
    plan.passes.front() = "nothing";
    return plan;
  };
  expect_error([&] { plan_program(small.graph, options); },
               {"the plan's list of passes", "there is no pass \"nothing\""});
  options.planner = [](const Graph& graph) {
    Plan plan = plan_program(graph);
    for (Instruction& i : plan.instructions)
      if (i.op->name() == "matmul") std::swap(i.inputs[0], i.inputs[1]);
    return plan;
  };
  EXPECT_THROW(plan_program(small.graph, options), ValueError);
}

class PlanFileOf : public testing::TestWithParam<std::string> {};

TEST_P(PlanFileOf, WorkloadGivesTheSameLossesAndPeak) {
  const TemporaryFolder folder;
  const fs::path path = folder / "step.plan";
  Bytes peak;
  const auto losses = [&](const std::function<Plan(const Graph&)>& planner) {
    const auto task = workloads::make_workload(small_workload(GetParam()));
    TrainOptions options;
    options.compile.planner = planner;
    TrainStep step(
        task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, options);
    data::Loader loader(task->train, {.batch = task->batch_size, .seed = 3});
    std::vector<double> result;
    for (int i = 0; i < 3; ++i) result.push_back(step(loader.next()).loss);
    peak = step.plan(task->train->types(task->batch_size)).peak;
    return result;
  };
  const std::vector<double> expected = losses([&](const Graph& graph) {
    const Plan plan = plan_program(graph);
    io::save_plan(plan, graph, path);
    return plan;
  });
  const Bytes planned = peak;
  EXPECT_EQ(losses([&](const Graph& graph) { return io::load_plan(path, graph); }), expected);
  EXPECT_EQ(peak, planned);
}

INSTANTIATE_TEST_SUITE_P(Workloads, PlanFileOf,
                         testing::Values("mlp", "lm", "gpt2", "llama", "bert", "resnet"),
                         [](const auto& name) { return name.param; });

TEST(PlanFile, AnotherGraphIsRefusedWithTheFirstDifference) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.plan";
  const Small made, wider(4, 7), longer(8, 3);
  io::save_plan(plan_program(made.graph), made.graph, path);
  EXPECT_EQ(error_of(path, made.graph), "none");
  EXPECT_EQ(error_of(path, Small().graph), "none");  // traced anew
  for (const Small* other : {&wider, &longer})
    EXPECT_NE(error_of(path, other->graph).find("the first difference is at node"),
              std::string::npos)
        << error_of(path, other->graph);
  Graph fewer = made.graph;
  fewer.updates.clear();
  EXPECT_NE(error_of(path, fewer).find("another graph"), std::string::npos);
}

TEST(PlanFile, ErrorsNameThePlace) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.plan";
  const Small small;
  io::save_plan(plan_program(small.graph), small.graph, path);
  const Json good = read(path);
  const auto expect = [&](const char* pointer, const Json& value, const char* part) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    write(path, bad);
    const std::string error = error_of(path, small.graph);
    EXPECT_TRUE(error.starts_with(path.string())) << error;
    EXPECT_NE(error.find(part), std::string::npos) << pointer << ": " << error;
  };
  expect("/format", "ebb", "not a plan");
  expect("/version", 1, "version 1");
  expect("/machine/kind", "cuda", "kind was \"cuda\" and is \"cpu\" here");
  expect("/machine/threads", threads() + 1, "threads");
  expect("/plan/instructions/0/op", "mul7", "there is no such op");
  expect("/plan/instructions/0/inputs/0/buffer", 10000, "instructions 0, inputs 0");
  expect("/plan/instructions/0/inputs/0/value", 1, "does not hold");
  expect("/plan/instructions/0/outputs/0/strides", Json::array({1, 1, 1}), "strides");
  expect("/plan/instructions/1/note", "x", "/instructions/1/note is not part of a plan");
  expect("/plan/spaces/0/bytes", 0, "past the end of its space");
  expect("/plan/leaves/0/path", "other", "leaf 0 is \"other\"");
  expect("/peak_bytes", 7, "tells a peak of 7 bytes");
}

// Changes any scalar of the tables, and removes or duplicates any row: the result is an error or a
// plan that runs.
TEST(PlanFile, NoEditHarms) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a.plan";
  const Small small;
  const Tensor x = eval(random_normal({4, 3}, 0.0, 1.0, f32));
  io::save_plan(plan_program(small.graph), small.graph, path);
  const Json good = read(path);
  std::vector<std::string> scalars, rows;
  const Json flat = good.flatten();
  for (const auto& [pointer, value] : flat.items())
    if (pointer.starts_with("/plan/")) scalars.push_back(pointer);
  for (const auto& [table, list] : good["plan"].items())
    if (list.is_array())
      for (std::size_t i = 0; i < list.size(); ++i)
        rows.push_back("/plan/" + table + "/" + std::to_string(i));
  std::mt19937 random(1);
  const auto below = [&](std::size_t end) { return random() % end; };
  const std::vector<Json> odd{
      0,         1,    -1,    2,    3,       7,     64,    128,           4096,
      1LL << 31, 1e99, "inf", true, nullptr, "add", "f32", Json::array(), INT64_MAX};
  int loaded = 0;
  const int count = sanitized ? 300 : 3000;
  for (int i = 0; i < count; ++i) {
    Json bad = good;
    for (std::size_t edits = 1 + below(2); edits > 0; --edits) {
      if (below(10) == 0) {
        const Json::json_pointer row(rows[below(rows.size())]);
        Json& table = bad[row.parent_pointer()];
        const std::size_t at = static_cast<std::size_t>(std::stoi(row.back()));
        if (at < table.size() && below(2))
          table.erase(at);
        else
          table.push_back(good[row]);
        continue;
      }
      const Json::json_pointer place(scalars[below(scalars.size())]);
      const Json& other = good[Json::json_pointer(scalars[below(scalars.size())])];
      if (bad.contains(place)) bad[place] = below(2) ? other : odd[below(odd.size())];
    }
    write(path, bad);
    try {
      const Plan plan = io::load_plan(path, small.graph);
      Program program(small.graph, plan, {});
      program.run({x});
      ++loaded;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, count / 2);
}

}  // namespace
}  // namespace ebb::test
