// `ebb ablate`: what a training step's memory goes to, and what each part of planning saves. One
// row is one choice of passes for the same step; all rows compute the same losses to the bit.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "cli/verb.h"
#include "ebb/ebb.h"
#include "ebb/models/gpt2.h"
#include "ebb/train/train_step.h"

namespace ebb::cli {
namespace {

struct Technique {
  std::string_view name;
  bool fuse;
  Release release;
  UpdateTiming updates;
};

// In the order in which each adds to the one before.
constexpr Technique techniques[] = {
    {"keep everything", false, Release::at_end, UpdateTiming::last},
    {"+ fusion", true, Release::at_end, UpdateTiming::last},
    {"+ early release", true, Release::early, UpdateTiming::last},
    {"+ early updates", true, Release::early, UpdateTiming::early},
};

struct Row {
  std::string name;
  Bytes planned, measured;
  CategoryBytes at_peak;
  double step_ms = 0.0;
  std::vector<double> losses;
};

class Ablate : public Verb {
 public:
  Ablate()
      : Verb("ablate", "Show what a training step's memory goes to and what planning saves",
             "ebb ablate --layers 4 --batch 8") {}

 protected:
  void configure(CLI::App& app) override {
    app.add_option("--layers", config_.layers, "Transformer blocks")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--width", config_.width, "Width of the model")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--heads", config_.heads, "Attention heads")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--vocabulary", config_.vocabulary, "Different tokens")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--batch", batch_, "Sequences in a batch")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--sequence", config_.context, "Tokens in a sequence")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--steps", steps_, "Steps to run")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--seed", seed_, "Of weights and data")->capture_default_str();
  }

  int run() override {
    std::vector<Row> rows;
    for (const Technique& technique : techniques) rows.push_back(measure(technique));
    for (const Row& row : rows)
      if (row.losses != rows.front().losses)
        throw Error(fmt::format("\"{}\" changed the losses: this is a fault in ebb", row.name));
    if (json())
      std::cout << as_json(rows).dump() << "\n";
    else
      print(rows);
    return success;
  }

 private:
  Row measure(const Technique& technique) const {
    auto model = make<models::Gpt2>(device::cpu, f32, config_);
    TrainOptions options;
    options.compile = {
        .plan = {.release = technique.release}, .fuse = technique.fuse, .seed = seed_};
    TrainStep step(
        model, optim::AdamW{.lr = 3e-4}, [&](const Batch& b) { return model.loss(b.x(), b.y()); },
        options);
    const Batch batch = make_batch();

    Row row;
    row.name = technique.name;
    const Plan& plan = step.plan(batch.types());
    row.planned = plan.peak;
    row.at_peak = plan.at_peak;
    std::vector<double> times;
    for (int i = 0; i < steps_; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      row.losses.push_back(step(batch).loss);
      times.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    row.measured = step.resident(batch.types());
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    row.step_ms = times[times.size() / 2];
    return row;
  }

  // Random tokens; each position predicts the next.
  Batch make_batch() const {
    const Tensor ids = eval(cast(random_uniform({batch_, config_.context + 1}, 0.0,
                                                static_cast<double>(config_.vocabulary), f32,
                                                device::cpu, RandomKey{1}),
                                 i64),
                            seed_);
    return {{eval(slice(ids, 1, 0, config_.context)), eval(slice(ids, 1, 1, config_.context + 1))}};
  }

  nlohmann::json as_json(const std::vector<Row>& rows) const {
    nlohmann::json list = nlohmann::json::array();
    for (const Row& row : rows) {
      nlohmann::json categories;
      for (int c = 0; c < category_count; ++c)
        categories[std::string(ebb::name(static_cast<Category>(c)))] =
            row.at_peak[static_cast<Category>(c)].count;
      list.push_back({{"technique", row.name},
                      {"planned_peak_bytes", row.planned.count},
                      {"measured_peak_bytes", row.measured.count},
                      {"peak_by_category", categories},
                      {"step_ms", row.step_ms},
                      {"losses", row.losses}});
    }
    return {{"workload", "gpt2"},          {"device", "cpu"},
            {"threads", threads()},        {"batch", batch_},
            {"sequence", config_.context}, {"layers", config_.layers},
            {"width", config_.width},      {"rows", list}};
  }

  void print(const std::vector<Row>& rows) const {
    fmt::print(
        "GPT-2 with {} blocks of width {}, batch {} × {} tokens, AdamW, float32, {} threads\n\n",
        config_.layers, config_.width, batch_, config_.context, threads());
    fmt::print("{:<17} {:>12} {:>12} {:>7} {:>9}", "", "planned", "resident", "of all", "ms/step");
    for (Category c : {Category::weights, Category::gradients, Category::optimizer,
                       Category::activations, Category::workspace})
      fmt::print(" {:>12}", ebb::name(c));
    fmt::print("\n");
    for (const Row& row : rows) {
      fmt::print("{:<17} {:>12} {:>12} {:>6.0f}% {:>9.1f}", row.name, to_string(row.planned),
                 to_string(row.measured),
                 100.0 * static_cast<double>(row.planned.count) /
                     static_cast<double>(rows.front().planned.count),
                 row.step_ms);
      for (Category c : {Category::weights, Category::gradients, Category::optimizer,
                         Category::activations, Category::workspace})
        fmt::print(" {:>12}", to_string(row.at_peak[c]));
      fmt::print("\n");
    }
    fmt::print(
        "\nThe peak was planned before the first step; all rows gave the same losses to the bit "
        "({:.4f} after {} steps).\n",
        rows.front().losses.back(), steps_);
  }

  models::Gpt2Config config_{
      .vocabulary = 5000, .context = 256, .layers = 4, .heads = 4, .width = 256};
  std::int64_t batch_ = 8;
  int steps_ = 5;
  std::uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<Verb> ablate_verb() { return std::make_unique<Ablate>(); }

}  // namespace ebb::cli
