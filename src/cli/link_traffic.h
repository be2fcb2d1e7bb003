// What the ranks of a run exchange in a step according to its plan, and which instructions wait for
// it.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/planning.h"
#include "ebb/bytes.h"
#include "ebb/plan.h"
#include "ebb/rates.h"

namespace ebb::cli {

struct LinkTraffic {
  Bytes sent;
  std::int64_t collectives = 0, exchanges = 0;
  double predicted_ms = 0.0, exposed_ms = 0.0;  // on the link; not hidden by computation

  // Instructions of one op that wait for collectives of one kind.
  struct Waiter {
    double calls = 0.0, exposed_ms = 0.0;
    double longest_ms = 0.0;  // of the longest wait
    std::string longest_at;   // the path of the instruction that waits
    void add(const Waiter& other, double times = 1.0);
  };
  // The same for one kind of collective.
  struct Kind {
    double calls = 0.0, sent = 0.0, predicted_ms = 0.0, exposed_ms = 0.0;
    std::map<std::string, Waiter> waiters = {};  // by op; "": the next step
  };
  std::map<std::string, Kind> kinds = {};
};

LinkTraffic link_traffic(const Plan& plan, const Rates& rates);
nlohmann::ordered_json link_fields(const PlanningOptions& options, const LinkTraffic& link);
std::string link_text(const PlanningOptions& options, const LinkTraffic& link, const Rates& rates);

}  // namespace ebb::cli
