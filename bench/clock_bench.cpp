// Compares the planner's clock with the real one: for every workload, predicted and measured time
// of a step, in total and for each kind of op. One JSON object per workload.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "ebb/data/loader.h"
#include "ebb/io/device_file.h"
#include "ebb/program.h"
#include "ebb/threads.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/workload.h"

namespace ebb::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> names;  // of the cases to run; none means all
  int threads = ebb::threads();
  int runs = 15;
  std::optional<std::string> device;  // a file with rates; default: measured here
  bool instructions = false;
};

// Sizes that take a fraction of a second on two cores.
std::map<std::string, workloads::Options> cases() {
  std::map<std::string, workloads::Options> result;
  for (const char* name : {"lm", "gpt2", "bert", "resnet", "mlp"}) result[name].name = name;
  workloads::Options &lm = result["lm"], &gpt2 = result["gpt2"], &bert = result["bert"];
  lm.layers = 4, lm.hidden = 512;
  gpt2.layers = 4, gpt2.width = 256, gpt2.heads = 4, gpt2.sequence = 256, gpt2.vocabulary = 5000;
  bert.layers = 4, bert.width = 256, bert.heads = 4, bert.vocabulary = 5000;
  result["mlp"].batch = 256;
  return result;
}

std::string kind_of(const Instruction& instruction) { return std::string(instruction.op->name()); }

std::string detail_of(const Instruction& instruction) {
  std::string text = fmt::format("{} {}(", instruction.path, kind_of(instruction));
  for (const Operand& input : instruction.inputs) text += to_string(input.type) + " ";
  text += ") ->";
  for (const Operand& output : instruction.outputs) text += " " + to_string(output.type);
  return text + " " + instruction.attributes.text();
}

// Milliseconds of an instruction over several runs. The fastest is the time on a quiet machine,
// which the rates describe; the median is the time on this one.
struct Measured {
  double fastest = 0.0, median = 0.0;
};

struct Times {
  int count = 0;
  double predicted = 0.0;
  Measured measured;

  void add(double predicted_ms, const Measured& m) {
    ++count, predicted += predicted_ms;
    measured.fastest += m.fastest, measured.median += m.median;
  }
  Json json() const {
    return {{"count", count},
            {"predicted_ms", predicted},
            {"fastest_ms", measured.fastest},
            {"median_ms", measured.median},
            {"predicted_to_fastest", predicted / measured.fastest},
            {"predicted_to_median", predicted / measured.median}};
  }
};

// The times of every instruction, after two runs to warm up.
std::vector<Measured> measure(workloads::Workload& task, Program& program, int runs) {
  data::Loader loader(task.train, {.batch = task.batch_size, .last = data::LastBatch::drop});
  std::vector<std::vector<double>> taken(program.plan().instructions.size());
  for (int run = -2; run < runs; ++run) {
    const Batch batch = loader.next();
    const int fields = static_cast<int>(batch.tensors.size());
    for (int i = 0; i < fields; ++i) program.feed(i, batch.tensors[static_cast<std::size_t>(i)]);
    program.feed(fields, 1e-4);                              // the rate
    program.feed(fields + 1, static_cast<double>(run + 3));  // the step
    const std::vector<double> times = program.timed_run();
    for (std::size_t i = 0; i < times.size() && run >= 0; ++i) taken[i].push_back(times[i]);
  }
  std::vector<Measured> result;
  for (std::vector<double>& times : taken) {
    std::sort(times.begin(), times.end());
    result.push_back({times.front(), times[times.size() / 2]});
  }
  return result;
}

Json report(const std::string& name, const workloads::Options& sizes, const Rates& rates,
            const Options& options) {
  const auto task = workloads::make_workload(sizes);
  TrainStep step(task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); });
  const data::Loader loader(task->train,
                            {.batch = task->batch_size, .last = data::LastBatch::drop});
  CompileOptions compile;
  compile.plan.rates = rates;
  Program program(step.trace(loader.types().front()), compile);
  const std::vector<Measured> measured = measure(*task, program, options.runs);

  Times all;
  std::map<std::string, Times> kinds, details;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const Instruction& instruction = program.plan().instructions[InstructionId(i)];
    all.add(instruction.predicted_ms, measured[i]);
    kinds[kind_of(instruction)].add(instruction.predicted_ms, measured[i]);
    details[detail_of(instruction)].add(instruction.predicted_ms, measured[i]);
  }
  const auto sorted = [](const std::map<std::string, Times>& table) {
    std::vector<std::pair<std::string, Times>> rows(table.begin(), table.end());
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return a.second.measured.fastest > b.second.measured.fastest;
    });
    Json result = Json::object();
    for (const auto& [key, times] : rows) result[key] = times.json();
    return result;
  };
  Json result{{"workload", name}, {"threads", options.threads}, {"runs", options.runs}};
  result.update(all.json());
  result["ops"] = sorted(kinds);
  if (options.instructions) result["instructions"] = sorted(details);
  return result;
}

int run(int argc, char** argv) {
  Options options;
  const auto all = cases();
  CLI::App app("Compares predicted and measured times of training steps.", "ebb_clock_bench");
  app.add_option("workloads", options.names, "Which of them (default: all)")
      ->check(CLI::IsMember(all));
  app.add_option("--threads", options.threads, "Threads of the kernels")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--runs", options.runs, "Steps that are measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--device", options.device, "Rates from this file (see ebb probe --save)")
      ->check(CLI::ExistingFile);
  app.add_flag("--instructions", options.instructions, "Every instruction too, dearest first");
  CLI11_PARSE(app, argc, argv);

  set_threads(options.threads);
  const Rates rates = options.device ? io::load_device(*options.device) : io::rates_here();
  for (const auto& [name, sizes] : all)
    if (options.names.empty() ||
        std::find(options.names.begin(), options.names.end(), name) != options.names.end())
      std::cout << report(name, sizes, rates, options).dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace ebb::bench

int main(int argc, char** argv) {
  try {
    return ebb::bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "ebb_clock_bench: error: " << e.what() << std::endl;
    return 1;
  }
}
