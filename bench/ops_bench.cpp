// Times ops: each case is compiled once and run many times. If an underlying library solves the
// same problem, it is timed too. One line per case, or one JSON object per line.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cases.h"
#include "ebb/program.h"
#include "ebb/threads.h"
#include "ebb/version.h"

namespace ebb::bench {
namespace {

struct Options {
  std::vector<std::string> names;  // parts of the names of the cases to run; none means all
  int threads = ebb::threads();
  double seconds = 0.5;  // of each measurement
  bool json = false, list = false, serve = false;
};

struct Timing {
  double median = 0.0, least = 0.0;  // milliseconds
  double processor = 0.0;  // milliseconds that all cores together worked on a run; on average
  int runs = 0;
};

double processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

// Runs `work` for about `seconds`, and at least five times, after two runs to warm up.
Timing measure(const Work& work, double seconds) {
  using clock = std::chrono::steady_clock;
  work(), work();
  std::vector<double> taken;
  const auto begin = clock::now();
  const double processor_before = processor_ms();
  do {
    const auto start = clock::now();
    work();
    taken.push_back(std::chrono::duration<double, std::milli>(clock::now() - start).count());
  } while (taken.size() < 5 || clock::now() - begin < std::chrono::duration<double>(seconds));
  const double processor = (processor_ms() - processor_before) / static_cast<double>(taken.size());
  std::sort(taken.begin(), taken.end());
  return {taken[taken.size() / 2], taken.front(), processor, static_cast<int>(taken.size())};
}

void report(const Case& c, const Options& options) {
  Program program(c.graph());
  const Bytes peak = program.plan().peak;
  const Timing own = measure([&] { program.run(); }, options.seconds);
  Timing library;
  if (c.underneath) library = measure(c.underneath(), options.seconds);

  if (options.json) {
    nlohmann::ordered_json line{{"case", c.name},
                                {"median_ms", own.median},
                                {"min_ms", own.least},
                                {"processor_ms", own.processor},
                                {"runs", own.runs},
                                {"peak_bytes", peak.count},
                                {"threads", options.threads},
                                {"version", version()}};
    if (c.underneath) {
      line["library_median_ms"] = library.median, line["library_min_ms"] = library.least;
      line["library_processor_ms"] = library.processor;
    }
    std::cout << line.dump() << std::endl;
  } else {
    std::cout << fmt::format("{:<42}{:>10.3f}{:>10.3f}{:>12}", c.name, own.median, own.least,
                             to_string(peak));
    if (c.underneath)
      std::cout << fmt::format("{:>10.3f}{:>7.2f}", library.median, own.median / library.median);
    std::cout << std::endl;
  }
}

// Runs the cases named on standard input, one per line, until it ends: so compare.py can alternate
// between programs.
void serve(const Options& options) {
  for (std::string name; std::getline(std::cin, name);) {
    const auto& cases = all_cases();
    const auto found =
        std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
    if (found == cases.end())
      throw std::invalid_argument(fmt::format("there is no case \"{}\"", name));
    report(*found, options);
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Times ebb's ops and, where there is one, the library underneath.", "ebb_bench");
  app.add_option("cases", options.names, "Parts of the names of the cases to run (default: all)");
  app.add_option("--threads", options.threads, "Threads of the kernels")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Time given to each measurement")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--json", options.json, "One JSON object per case");
  app.add_flag("--list", options.list, "Print the names of the cases and stop");
  app.add_flag("--serve", options.serve, "Read names of cases from standard input; implies --json");
  CLI11_PARSE(app, argc, argv);

  set_threads(options.threads);
  if (options.serve) {
    options.json = true;
    serve(options);
    return 0;
  }
  std::vector<Case> chosen;
  for (const Case& c : all_cases())
    if (options.names.empty() ||
        std::any_of(options.names.begin(), options.names.end(), [&](const std::string& part) {
          return c.name.find(part) != std::string::npos;
        }))
      chosen.push_back(c);
  if (chosen.empty()) throw std::invalid_argument("no case has a name like that; see --list");
  if (!options.json && !options.list)
    std::cout << fmt::format("{:<42}{:>10}{:>10}{:>12}{:>10}{:>7}\n", "case", "median ms", "least",
                             "peak", "library", "ratio");
  for (const Case& c : chosen)
    if (options.list)
      std::cout << c.name << '\n';
    else
      report(c, options);
  return 0;
}

}  // namespace
}  // namespace ebb::bench

int main(int argc, char** argv) {
  try {
    return ebb::bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "ebb_bench: error: " << e.what() << std::endl;
    return 1;
  }
}
