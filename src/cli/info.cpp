// `ebb info`: this build, and the machine it runs on.
#include <fmt/core.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/run_facts.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/bytes.h"
#include "ebb/threads.h"
#include "ebb/version.h"

namespace ebb::cli {
namespace {

class Info : public Verb {
 public:
  Info() : Verb("info", "Show the version, and the processor and memory ebb sees", "ebb info") {}

 private:
  void configure(CLI::App&) override {}

  int run() override {
    if (json())
      std::cout << json_text(nlohmann::ordered_json{{"version", version()},
                                                    {"physical_cores", physical_cores()},
                                                    {"threads", threads()},
                                                    {"memory_bytes", physical_memory().count}},
                             2)
                << '\n';
    else
      std::cout << fmt::format("version  {}\ncores    {}\nthreads  {}\nmemory   {}\n", version(),
                               physical_cores(), threads(), to_string(physical_memory()));
    return success;
  }
};

}  // namespace

std::unique_ptr<Verb> info_verb() { return std::make_unique<Info>(); }

}  // namespace ebb::cli
