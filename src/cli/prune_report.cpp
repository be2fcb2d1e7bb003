#include "cli/prune_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "ebb/bytes.h"

namespace ebb::cli {

void print_pruned(const nlohmann::ordered_json& r) {
  using Json = nlohmann::ordered_json;
  const auto pair = [](const Json& value) {
    return std::pair(value.at("before").get<std::int64_t>(), value.at("after").get<std::int64_t>());
  };
  const auto [p0, p1] = pair(r.at("parameters"));
  const auto [b0, b1] = pair(r.at("bytes"));
  fmt::print("parameters {} → {}, {} → {}\n", p0, p1, to_string(Bytes{b0}), to_string(Bytes{b1}));
  if (r.contains("zeros"))
    fmt::print("zeros {} of {} weights in {} matrices\n", r.at("zeros").get<std::int64_t>(),
               r.at("weights").get<std::int64_t>(), r.at("matrices").get<std::int64_t>());
  for (const Json& row : r.value("removed", Json::array())) {
    const std::string path = row.at("path").get<std::string>();
    if (row.contains("after"))
      fmt::print("{}: {} {} → {}\n", path, row.at("kind").get<std::string>(),
                 row.at("before").get<std::int64_t>(), row.at("after").get<std::int64_t>());
    else
      fmt::print("{}: removed\n", path);
  }
  if (r.contains("planned_step")) {
    const Json& step = r.at("planned_step");
    fmt::print("planned training step: {} → {}\n",
               to_string(Bytes{step.at("before").at("peak").get<std::int64_t>()}),
               to_string(Bytes{step.at("after").at("peak").get<std::int64_t>()}));
  }
  if (r.contains("planned_peak_bytes"))
    fmt::print("peak of the process: {} planned, {} taken\n",
               to_string(Bytes{r.at("planned_peak_bytes").get<std::int64_t>()}),
               to_string(Bytes{r.at("process_peak_bytes").get<std::int64_t>()}));
  if (r.contains("loss"))
    fmt::print("loss {:.6f} → {:.6f} over {} tokens\n", r.at("loss").at("before").get<double>(),
               r.at("loss").at("after").get<double>(),
               r.at("loss").at("tokens").get<std::int64_t>());
  if (r.contains("why_not"))
    fmt::print("transformers cannot load it: {}\n", r.at("why_not").get<std::string>());
  fmt::print("saved {}\n", r.at("save").get<std::string>());
}

}  // namespace ebb::cli
