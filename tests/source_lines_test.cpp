// The lines of source code that made modules.
#include "ebb/report/source_lines.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "ebb/models/gpt2.h"
#include "ebb/nn/layers.h"
#include "ebb/ops.h"
#include "ebb/program.h"
#include "ebb/report/timeline.h"

namespace ebb::test {
namespace {

constexpr std::uint32_t members_line = __LINE__ + 2;
struct Members : nn::Module<Members> {  // children in default member initializers
  nn::Linear in{at("in"), 4, 8};
  nn::Linear out{at("out"), 8, 2};
  nn::List<nn::Linear> more{at("more"), 2, 2, 2};
  Tensor forward(const Tensor& x) { return out(in(x)); }
};

constexpr std::uint32_t constructed_line = __LINE__ + 4;
struct Constructed : nn::Module<Constructed> {
  nn::Linear in;
  std::unique_ptr<nn::Linear> late;
  explicit Constructed(const std::string& name) : in(at("in"), 4, 8) {
    late = std::make_unique<nn::Linear>(at(name), 8, 2);
  }
  Tensor forward(const Tensor& x) { return (*late)(in(x)); }
};

TEST(SourceLines, AreThoseOfTheNamesOfChildren) {
  const auto members = make<Members>(device::cpu, f32);
  EXPECT_TRUE(std::string_view(members.in.source().file).ends_with("source_lines_test.cpp"));
  EXPECT_EQ(members.in.source().line, members_line);
  EXPECT_EQ(members.out.source().line, members_line + 1);
  EXPECT_EQ(members.more.source().line, members_line + 2);
  const auto constructed = make<Constructed>(device::cpu, f32, "late");
  EXPECT_EQ(constructed.in.source().line, constructed_line);
  EXPECT_EQ(constructed.late->source().line, constructed_line + 1);
  EXPECT_GT(constructed.source().line, 0U);  // the constructor, or the class
}

TEST(SourceLines, AreToldByPathWithoutTheFoldersOfAll) {
  const auto members = make<Members>(device::cpu, f32);
  const auto lines = report::SourceLines(members).by_path();
  EXPECT_EQ(lines.at("out"), fmt::format("source_lines_test.cpp:{}", members_line + 1));
  EXPECT_EQ(lines.at("more.1"), lines.at("more"));
  EXPECT_FALSE(lines.contains(""));
  models::Gpt2Config config;
  config.vocabulary = 16, config.context = 8, config.width = 8, config.layers = 2, config.heads = 2;
  const auto gpt2 = make<models::Gpt2>(device::cpu, f32, config);
  report::SourceLines both(gpt2);
  EXPECT_TRUE(both.by_path().at("transformer.h.1.mlp.c_fc").starts_with("gpt2.cpp:"));
  both.add(members);  // of another folder
  EXPECT_TRUE(both.by_path().at("out").find("tests/source_lines_test.cpp:") != std::string::npos);
  EXPECT_TRUE(both.by_path().at("transformer.wte").find("models/gpt2.cpp:") != std::string::npos);
  const auto constructed = make<Constructed>(device::cpu, f32, "late");
  both.add(constructed);
  EXPECT_NE(both.by_path().at("in").find(" or "), std::string::npos);  // two models have it
}

TEST(SourceLines, AreInTheTimelineOfAPage) {
  Graph graph;
  graph.outputs = {ones({4}) + 1.0};
  const Plan plan = plan_program(graph);
  EXPECT_EQ(report::timeline_json(plan).find("\"sources\""), std::string::npos);
  const auto members = make<Members>(device::cpu, f32);
  EXPECT_NE(report::timeline_json(plan, report::SourceLines(members))
                .find(fmt::format("\"in\":\"source_lines_test.cpp:{}\"", members_line)),
            std::string::npos);
}

}  // namespace
}  // namespace ebb::test
