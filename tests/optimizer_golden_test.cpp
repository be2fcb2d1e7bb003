// Compares steps of optimizers with other implementations: tests/golden/optimizers, written by
// tools/make_golden_optimizers.py, which describes the format.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "ebb/ebb.h"
#include "ops/quantised_adam/maps.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json file = Json::parse(std::ifstream(EBB_GOLDEN_FOLDER "/optimizers/runs.json"));
  return file;
}

// Options by name. Options that a case does not give have their defaults; an unknown one is an
// error.
class Options {
 public:
  explicit Options(Json json) : json_(std::move(json)) {}
  ~Options() { EXPECT_TRUE(json_.empty()) << "options without a field: " << json_.dump(); }

  template <class T>
  Options& operator()(const char* name, T& field) {
    if (const auto found = json_.find(name); found != json_.end()) {
      field = found->get<typename Inner<T>::type>();
      json_.erase(found);
    }
    return *this;
  }

 private:
  template <class T>
  struct Inner {
    using type = T;
  };
  template <class T>
  struct Inner<std::optional<T>> {
    using type = T;
  };
  Json json_;
};

template <class O>
O adam(const Json& json) {
  O o;
  Options options(json);
  options("lr", o.lr)("beta1", o.beta1)("beta2", o.beta2)("eps", o.eps);
  options("weight_decay", o.weight_decay);
  if constexpr (requires { o.min_quantised_elements; }) o.min_quantised_elements = 0;
  return o;
}

optim::Optimizer make(const std::string& name, const Json& json) {
  if (name == "adam") return adam<optim::Adam>(json);
  if (name == "adamw") return adam<optim::AdamW>(json);
  if (name == "adam8bit") return adam<optim::Adam8bit>(json);
  if (name == "adamw8bit") return adam<optim::AdamW8bit>(json);
  if (name == "adamw4bit") return adam<optim::AdamW4bit>(json);
  Options options(json);
  if (name == "sgd") {
    optim::SGD o;
    options("lr", o.lr)("momentum", o.momentum)("nesterov", o.nesterov);
    options("weight_decay", o.weight_decay);
    return o;
  }
  if (name == "lion") {
    optim::Lion o;
    options("lr", o.lr)("weight_decay", o.weight_decay);
    return o;
  }
  if (name == "lomo") {
    optim::LOMO o;
    options("lr", o.lr)("clip_value", o.clip_value)("clip_parameter_norm", o.clip_parameter_norm);
    return o;
  }
  if (name != "adafactor") throw std::invalid_argument(name);
  optim::Adafactor o;
  options("lr", o.lr)("relative_step", o.relative_step)("warm_up", o.warm_up);
  options("scale_by_parameter", o.scale_by_parameter)("beta2_decay", o.beta2_decay);
  options("clip_threshold", o.clip_threshold)("beta1", o.beta1)("weight_decay", o.weight_decay);
  options("decay_by_step", o.decay_by_step);
  return o;
}

Tensor tensor(const Json& values, const Shape& shape, DType dtype) {
  return eval(cast(Tensor::from(values.get<std::vector<double>>(), shape), dtype));
}

void expect_near(const Tensor& actual, const Json& golden, double tolerance, const char* what) {
  const auto a = values_of(actual), b = golden.get<std::vector<double>>();
  ASSERT_EQ(a.size(), b.size()) << what;
  double scale = 0.0;
  for (double value : b) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], tolerance * scale) << what << ", element " << i;
}

// Runs a case in `dtype` and compares.
void run(const Json& json, DType dtype, double tolerance) {
  SCOPED_TRACE(json.at("name").get<std::string>() + " in " + std::string(name(dtype)));
  Shape shape;
  for (const Json& size : json.at("shape")) shape.push_back(size.get<std::int64_t>());
  const Variable p(tensor(json.at("parameter"), shape, dtype));
  const optim::Optimizer optimizer = make(json.at("optimizer"), json.at("options"));

  optim::StateStore store;
  const Tensor gradient = input({shape, dtype}, "gradient"), rate = input({{}, f64}, "rate"),
               step = input({{}, f64}, "step"), scale = input({{}, f32}, "scale");
  const Graph graph{{gradient, rate, step, scale},
                    {},
                    optimizer.updates({{"p", p}}, {gradient}, rate, step, scale, store)};
  Program program(graph);
  const Json& gradients = json.at("gradients");
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    program.feed(0, tensor(gradients[i], shape, dtype));
    program.feed(1, optimizer.rate());
    program.feed(2, static_cast<double>(i + 1));
    program.feed(
        3, tensor(json.contains("scales") ? Json::array({json["scales"][i]}) : Json::array({1.0}),
                  {}, f32));
    program.run();
  }

  expect_near(p, json.at("after"), tolerance, "parameter");
  EXPECT_EQ(store.all().size(), json.at("state").size());
  for (const auto& [field, state] : json.at("state").items()) {
    ASSERT_TRUE(store.all().contains("p." + field)) << field;
    const Variable& kept = store.all().at("p." + field);
    if (kept.dtype() == u8)
      EXPECT_EQ(kept.to_vector<std::uint8_t>(), state.at("values").get<std::vector<std::uint8_t>>())
          << field;
    else
      expect_near(kept, state.at("values"), tolerance, field.c_str());
  }
}

// Float64 leaves about 1e-16 per operation. Float32 has 6e-8, and a step divides by a root of sums.
TEST(OptimizerGolden, StepsAgreeWithOtherImplementations) {
  for (const Json& json : golden().at("cases")) {
    const bool quantised = json.at("optimizer").get<std::string>().ends_with("bit");
    if (!quantised) run(json, f64, 1e-12);
    run(json, f32, 1e-5);
  }
}

TEST(OptimizerGolden, EveryOptimizerHasACase) {
  for (std::string_view name : optim::names()) {
    bool found = false;
    for (const Json& json : golden().at("cases")) found |= json.at("optimizer") == name;
    EXPECT_TRUE(found) << name;
  }
}

// Maps are rounded once here and several times by bitsandbytes: two units in the last place.
TEST(OptimizerGolden, MapsAgreeWithPublishedOnes) {
  const std::map<std::string, const std::vector<float>*> maps{
      {"signed8", &MomentMaps::of(8).mean},
      {"unsigned8", &MomentMaps::of(8).square},
      {"signed4", &MomentMaps::of(4).mean},
      {"linear4", &MomentMaps::of(4).square}};
  for (const auto& [name, map] : maps) {
    const auto published = golden().at("maps").at(name).get<std::vector<float>>();
    ASSERT_EQ(map->size(), published.size()) << name;
    for (std::size_t i = 0; i < published.size(); ++i)
      EXPECT_NEAR((*map)[i], published[i], 2.4e-7f * std::abs(published[i])) << name << ' ' << i;
  }
}

}  // namespace
}  // namespace ebb::test
